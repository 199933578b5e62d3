"""Several reports side by side: where statuses differ, which figures are better or worse, and what makes the
comparison shaky. The first report is what the others are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from omni_portable.conformance.check import Group, Measurement, Result, Status
from omni_portable.conformance.report import Report
from omni_portable.conformance.wording import is_least_count

SAME = 0.05
"""Relative difference up to which figures count as the same: timings and rounding differ by that from run to run."""
Trend = Literal["", "same", "better", "worse"]


@dataclass(frozen=True)
class Figure:
    """One measurement in every report.

    Args:
        values: None where the report lacks it.
        limits: thresholds; None where not judged.
        trends: against the first report; '' where nothing can be said (a figure is missing, or no direction is good).
    """

    name: str
    unit: str
    values: tuple[float | None, ...]
    limits: tuple[float | None, ...]
    trends: tuple[Trend, ...]

    @property
    def changes(self) -> tuple[float | None, ...]:
        """Differences from the first report's value; None where either is missing."""
        first = self.values[0]
        return tuple(None if value is None or first is None else value - first for value in self.values)


@dataclass(frozen=True)
class Row:
    """One check in every report.

    Args:
        results: None where the check was not selected in that report.
    """

    id: str
    group: Group
    title: str
    results: tuple[Result | None, ...]
    figures: tuple[Figure, ...]

    @property
    def statuses(self) -> tuple[Status | None, ...]:
        return tuple(None if result is None else result.status for result in self.results)

    @property
    def differs(self) -> bool:
        """The check ended in different ways where it was selected."""
        return len({status for status in self.statuses if status is not None}) > 1


@dataclass(frozen=True)
class ReportComparison:
    """Reports with their labels, the rows, and sentences about what makes them hard to compare."""

    labels: tuple[str, ...]
    files: tuple[str, ...]
    reports: tuple[Report, ...]
    rows: tuple[Row, ...]
    flags: tuple[str, ...]

    def moved(self, trend: Trend) -> Iterator[tuple[Row, Figure, int]]:
        """Figures of that trend: (row, figure, position of the report)."""
        for row in self.rows:
            for figure in row.figures:
                yield from ((row, figure, at) for at, found in enumerate(figure.trends) if found == trend)


def compare_reports(reports: Sequence[Report], files: Sequence[str]) -> ReportComparison:
    """Compare at least two reports; rows follow the order of the checks in the first report that has them."""
    tables = [{result.id: result for result in report.results} for report in reports]
    rows = tuple(_row(name, [table.get(name) for table in tables]) for name in _order(reports))
    return ReportComparison(_labels(reports), tuple(files), tuple(reports), rows, tuple(_flags(reports)))


def _order(reports: Sequence[Report]) -> list[str]:
    """Ids group by group, each report's additions after those of the one before."""
    found = {result.id: result.group for report in reports for result in report.results}
    groups = list(dict.fromkeys(found.values()))
    return sorted(found, key=lambda name: groups.index(found[name]))


def _labels(reports: Sequence[Report]) -> tuple[str, ...]:
    """The devices; where several reports are of one device, numbered."""
    devices = [report.device for report in reports]
    return tuple(
        f"{device} #{devices[: at + 1].count(device)}" if devices.count(device) > 1 else device
        for at, device in enumerate(devices)
    )


def _row(name: str, results: Sequence[Result | None]) -> Row:
    present = [result for result in results if result is not None]
    names = dict.fromkeys(measurement.name for result in present for measurement in result.measurements)
    figures = tuple(_figure(one, results) for one in names)
    return Row(name, present[0].group, present[0].title, tuple(results), figures)


def _figure(name: str, results: Sequence[Result | None]) -> Figure:
    found = [next((m for m in (r.measurements if r else ()) if m.name == name), None) for r in results]
    present = next(measurement for measurement in found if measurement is not None)
    return Figure(
        name,
        present.unit,
        tuple(None if m is None else m.value for m in found),
        tuple(None if m is None else m.threshold for m in found),
        tuple(_trend(found[0], m) for m in found),
    )


def _trend(first: Measurement | None, other: Measurement | None) -> Trend:
    if first is None or other is None or first is other:
        return ""
    was, now = _badness(first), _badness(other)
    if was is None or now is None or (first.unit, first.relation) != (other.unit, other.relation):
        return ""
    if math.isnan(was) or math.isnan(now):
        return "" if math.isnan(was) else "worse"
    if was == now or abs(now - was) <= SAME * abs(was):
        return "same"
    return "worse" if now > was else "better"


def _badness(measurement: Measurement) -> float | None:
    """What grows as the figure gets worse; None where neither direction is good."""
    value, relation = measurement.value, measurement.relation
    if relation == "==" and measurement.threshold is not None:
        return abs(value - measurement.threshold)
    if relation == "<=" or (not relation and measurement.unit == "s"):
        return value
    if relation == ">=" and is_least_count(measurement):
        return None
    if relation == ">=" or (not relation and measurement.unit.endswith("/s")):
        return -value
    return None


def _dtype(report: Report) -> object:
    """Of the recipe's model; the published schema leaves open what the environment says of it."""
    model = report.environment.get("model")
    return model.get("dtype", "unknown") if isinstance(model, Mapping) else "unknown"


def _flags(reports: Sequence[Report]) -> Iterator[str]:
    asked: dict[str, Callable[[Report], object]] = {
        "suites": lambda report: report.provenance.suite,
        "selections (--only)": lambda report: ", ".join(report.provenance.only) or "none",
        "recipes": lambda report: report.provenance.recipe,
        "overrides": lambda report: " ".join(report.provenance.overrides) or "none",
        "seeds": lambda report: report.provenance.seed,
        "versions of omni-portable": lambda report: report.provenance.version,
        "commits": lambda report: report.provenance.commit[:12] or "unknown",
        "dtypes": _dtype,
    }
    for what, read in asked.items():
        values = [str(read(report)) for report in reports]
        if len(set(values)) > 1:
            yield f"different {what}: {' | '.join(values)}"
    for label, report in zip(_labels(reports), reports, strict=True):
        if report.provenance.state != "complete":
            yield f"{label}: the run is {report.provenance.state}, so checks are missing"
        if report.provenance.modified:
            yield f"{label}: its source tree differed from the commit"
