"""Plots of a report: how close every figure is to its limit, and the curves that checks drew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from omni_portable.conformance.check import Measurement, Result
from omni_portable.conformance.report import Report
from omni_portable.conformance.wording import is_least_count
from omni_portable.trainer.report.charts import Line, line_chart
from omni_portable.trainer.report.markup import Raw, esc, section

SHOWN = 15
"""Bars of the figures that are closest to their limits."""


def plots_section(report: Report) -> Raw:
    """Bars first, then a chart per check that has curves."""
    charts = "".join(check_chart(result.id, result.title, {"": result.series}) for result in report.results)
    return section("Plots", "plots", _bars(report.results), f'<div class="charts">{charts}</div>')


def check_chart(name: str, note: str, series: Mapping[str, Mapping[str, Sequence[float]]]) -> Raw:
    """All curves of one check in one chart.

    Args:
        series: label of the report ('' where there is only one) -> curve -> values, numbered from 0.
    """
    drawn = [
        Line(f"{label} {curve}".strip(), [(index, _defined(value)) for index, value in enumerate(values)])
        for label, curves in series.items()
        for curve, values in curves.items()
    ]
    return line_chart(name, drawn, note, x_label="position in the series")


def limit_used(measurement: Measurement) -> float | None:
    """Share of its limit that a figure uses: above 1 breaks it. None where shares mean nothing (no limit, a limit of 0,
    an exact value, a count)."""
    value, limit = measurement.value, measurement.threshold
    if measurement.ok is None or limit is None or not limit > 0:
        return None
    if measurement.relation == "<=":
        return value / limit
    if measurement.relation == ">=" and value > 0 and not is_least_count(measurement):
        return limit / value
    return None


def _bars(results: Sequence[Result]) -> str:
    used = [
        (share, f"{result.id}: {measurement.name}")
        for result in results
        for measurement in result.measurements
        if (share := limit_used(measurement)) is not None
    ]
    if not used:
        return "<p>No figure with a limit was measured.</p>"
    used.sort(key=lambda entry: math.inf if math.isnan(entry[0]) else entry[0], reverse=True)
    rows = "".join(_bar(share, name) for share, name in used[:SHOWN])
    return (
        f"<h3>Closest to their limits</h3><p>The {min(SHOWN, len(used))} of {len(used)} figures that use most of what "
        f'is allowed; beyond 100 % the check fails.</p><div class="bars">{rows}</div>'
    )


def _bar(share: float, name: str) -> str:
    width = 100.0 if not share < 1 else max(0.0, share) * 100
    kind = "fill" if share <= 1 else "fill over"
    text = f"{share:.1%}" if math.isfinite(share) else "not finite"
    return (
        f'<span>{esc(name)}</span><div class="track"><div class="{kind}" style="width:{width:.1f}%"></div></div>'
        f"<span>{text}</span>"
    )


def _defined(value: float) -> float | None:
    return value if math.isfinite(value) else None
