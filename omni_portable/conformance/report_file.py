"""report.json: written whole, read back with suspicion. The published schema is the one truth about its shape."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omni_portable.conformance.check import Measurement, Result
from omni_portable.conformance.json_file import read_json
from omni_portable.conformance.report import SCHEMA, SCHEMA_VERSION, Provenance, Report
from omni_portable.conformance.schema_check import problems
from omni_portable.contracts.errors import ConfigError

SCHEMA_FILE = Path(__file__).with_name("report.schema.json")
FILE_NAME = "report.json"
LARGEST_BYTES = 64 << 20
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class ReportFileError(ConfigError):
    """A file that is no conformance report, is damaged, or is of another schema version (exit code 2)."""


def to_data(report: Report) -> dict[str, Any]:
    """The content of report.json as plain data."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "verdict": report.verdict,
        "counts": dict(report.counts),
        "provenance": dataclasses.asdict(report.provenance),
        "environment": report.environment,
        "checks": [_result_data(result) for result in report.results],
    }


def to_json(report: Report) -> str:
    """The text of report.json: strict JSON, numbers that are not finite as text."""
    return json.dumps(to_data(report), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def read_report(path: Path) -> Report:
    """Read a report that :func:`to_json` wrote.

    Args:
        path: the file, or the folder that holds it as report.json.

    Raises:
        ReportFileError: missing, unreadable, truncated, no report, another schema version, or a report that
            contradicts itself; names the file and the place.
    """
    if path.is_dir():
        path = path / FILE_NAME
    data = _parse(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ReportFileError(
            f"{path} is no conformance report of omni-portable", remedy="name a report.json of `conformance run`"
        )
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ReportFileError(
            f"{path} is of schema version {data.get('schema_version')!r}; this omni-portable reads {SCHEMA_VERSION}",
            remedy="run the conformance suite again with this version, or read it with the one that wrote it",
        )
    found = next(problems(data, json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))), None)
    if found is None:
        report = _from_data(data)
        found = next(_contradictions(report, data), None)
    if found is not None:
        raise ReportFileError(f"{path} is damaged: {found}", remedy="run the conformance suite again")
    return report


def finite_or_text(value: float) -> float | str:
    """JSON has no NaN and no infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _parse(path: Path) -> Any:
    try:
        return read_json(path, LARGEST_BYTES, _refuse_constant)
    except OSError as error:
        raise ReportFileError(
            f"cannot read the report {path}: {error.strerror}", remedy="name a report.json, or the folder that holds it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ReportFileError(
            f"{path} is damaged or no JSON: {error}", remedy="copy it again, or run the conformance suite again"
        ) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"the number {name} is no JSON")


def _result_data(result: Result) -> dict[str, Any]:
    return {
        "id": result.id,
        "group": result.group,
        "title": result.title,
        "status": result.status,
        "reason": result.reason,
        "remedy": result.remedy,
        "seconds": result.seconds,
        "measurements": [_measurement_data(measurement) for measurement in result.measurements],
        "detail": result.detail,
        "facts": {str(name): str(value) for name, value in result.facts.items()},
        "series": {name: [finite_or_text(float(v)) for v in values] for name, values in result.series.items()},
    }


def _measurement_data(measurement: Measurement) -> dict[str, Any]:
    return {
        "name": measurement.name,
        "value": finite_or_text(float(measurement.value)),
        "unit": measurement.unit,
        "relation": measurement.relation,
        "threshold": None if measurement.threshold is None else finite_or_text(float(measurement.threshold)),
        "ok": measurement.ok,
    }


def _from_data(data: Mapping[str, Any]) -> Report:
    """From data that fits the schema."""
    provenance = dict(data["provenance"])
    provenance |= {name: tuple(provenance[name]) for name in ("only", "overrides")}
    results = tuple(_result(entry) for entry in data["checks"])
    return Report(Provenance(**provenance), data["environment"], results)


def _result(entry: Mapping[str, Any]) -> Result:
    measurements = tuple(
        Measurement(m["name"], _number(m["value"]), m["unit"], m["relation"], _threshold(m["threshold"]))
        for m in entry["measurements"]
    )
    series = {name: tuple(map(_number, values)) for name, values in entry["series"].items()}
    return Result(**{**entry, "measurements": measurements, "series": series})


def _number(value: float | str) -> float:
    return _NOT_FINITE[value] if isinstance(value, str) else float(value)


def _threshold(value: float | str | None) -> float | None:
    return None if value is None else _number(value)


def _contradictions(report: Report, data: Mapping[str, Any]) -> Iterator[str]:
    """What no run can have written: a status that the figures do not bear, sums that do not add up."""
    ids = Counter(result.id for result in report.results)
    yield from (f"the check '{name}' is there twice" for name, count in ids.items() if count > 1)
    for result, entry in zip(report.results, data["checks"], strict=True):
        verdicts = [measurement.ok for measurement in result.measurements]
        if verdicts != [measurement["ok"] for measurement in entry["measurements"]]:
            yield f"'ok' of a measurement of '{result.id}' does not follow from its value"
        if result.status == "passed" and (False in verdicts or True not in verdicts):
            yield f"'{result.id}' is 'passed' without a threshold that holds, or with one that does not"
        if result.status == "recorded" and set(verdicts) != {None}:
            yield f"'{result.id}' is 'recorded', but has a threshold, or no measurement at all"
        names = {measurement.name for measurement in result.measurements}
        if result.status != "failed" and len(names) < len(verdicts):
            yield f"'{result.id}' is '{result.status}', but measured one thing twice"
        if result.id.partition(".")[0] != result.group:
            yield f"'{result.id}' is not of its group '{result.group}'"
        if result.status in ("failed", "not_run") and not result.reason:
            yield f"'{result.id}' is '{result.status}' without a reason"
        if result.status == "not_run" and result.measurements:
            yield f"'{result.id}' is 'not_run', but has measurements"
    if data["counts"] != report.counts or data["verdict"] != report.verdict:
        yield "counts or verdict do not follow from the checks"
