"""Figures in words, as the terminal, the pages and JUnit show them alike."""

from __future__ import annotations

import math

from omni_portable.conformance.check import Measurement, Status

STATUS_WORDS: dict[Status, str] = {
    "passed": "passed",
    "failed": "failed",
    "recorded": "recorded",
    "not_run": "not run",
}
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def value_text(value: float, unit: str = "") -> str:
    """'1.2e-07', '0.983', '144.0 MiB', '0.31 s', '12 images/s'."""
    if unit == "bytes":
        return _bytes(value)
    return f"{_number(value)} {unit}".strip()


def measurement_text(measurement: Measurement) -> str:
    """'forward_error 1.2e-07 <= 1e-05'; the unit once where it can be."""
    text = f"{measurement.name} {value_text(measurement.value, measurement.unit)}"
    if measurement.ok is None or measurement.threshold is None:
        return text
    unit = measurement.unit if measurement.unit == "bytes" else ""
    return f"{text} {measurement.relation} {value_text(measurement.threshold, unit)}"


def threshold_text(measurement: Measurement) -> str:
    """'at most 1e-05'; empty where nothing is asked."""
    if measurement.ok is None or measurement.threshold is None:
        return ""
    words = {"<=": "at most", ">=": "at least", "==": "exactly"}
    return f"{words[measurement.relation]} {value_text(measurement.threshold, measurement.unit)}"


def is_least_count(measurement: Measurement) -> bool:
    """Whether a figure counts things of which there must be some: more of them is not better."""
    least = measurement.threshold
    return measurement.relation == ">=" and least is not None and least >= 1 and least == int(least)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return {math.inf: "infinite", -math.inf: "minus infinite"}.get(value, "not a number")
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 1e6 else f"{value:.4g}"


def _bytes(value: float) -> str:
    for name, size in _UNITS:
        if math.isfinite(value) and abs(value) >= size:
            return f"{value / size:.1f} {name}"
    return f"{_number(value)} bytes"
