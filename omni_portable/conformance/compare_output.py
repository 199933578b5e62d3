"""A comparison as a table for the terminal and as compare.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from omni_portable.conformance.check import Status
from omni_portable.conformance.compare_reports import Figure, ReportComparison
from omni_portable.conformance.report_file import finite_or_text
from omni_portable.conformance.wording import STATUS_WORDS, value_text

SCHEMA, SCHEMA_VERSION = "omni-portable/conformance-comparison", 1
ABSENT = "not selected"
_STYLES: dict[Status | None, str] = {
    "passed": "green",
    "failed": "bold red",
    "recorded": "blue",
    "not_run": "yellow",
    None: "dim",
}


class Terminal(Console):
    """Rich's console, without its own answer to a reader that went away (it would end the process with code 1)."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - the BrokenPipeError that is being handled


def print_comparison(comparison: ReportComparison, console: Console) -> None:
    """Flags, what each label is, statuses check by check, then every figure that got better or worse."""
    for flag in comparison.flags:
        console.print(Text(f"note: {flag}", style="yellow"))
    for label, file, report in zip(comparison.labels, comparison.files, comparison.reports, strict=True):
        console.print(Text(f"{label}: {report.environment['device']['model']}, {report.provenance.started}, {file}"))
    console.print(_statuses(comparison))
    moved = _moved(comparison)
    if moved.row_count:
        console.print(moved)
    better, worse = (len(list(comparison.moved(trend))) for trend in ("better", "worse"))
    differing = sum(row.differs for row in comparison.rows)
    console.print(
        Text(
            f"{len(comparison.rows)} checks, {differing} with different statuses; {better} figures better and {worse} "
            f"worse than in {comparison.labels[0]}"
        )
    )


def _statuses(comparison: ReportComparison) -> Table:
    table = Table("check", *_headers(comparison), title="Statuses")
    for row in comparison.rows:
        cells = [
            Text(ABSENT if status is None else STATUS_WORDS[status], style=_STYLES[status]) for status in row.statuses
        ]
        table.add_row(Text(row.id, style="bold" if row.differs else ""), *cells)
    return table


def _moved(comparison: ReportComparison) -> Table:
    table = Table("figure", *_headers(comparison), title=f"Figures that differ, against {comparison.labels[0]}")
    for row in comparison.rows:
        for figure in row.figures:
            if "better" in figure.trends or "worse" in figure.trends:
                table.add_row(Text(f"{row.id} {figure.name}"), *map(Text, figure_cells(figure)))
    return table


def _headers(comparison: ReportComparison) -> list[Column]:
    return [Column(header=Text(label), overflow="fold") for label in comparison.labels]


def figure_cells(figure: Figure) -> list[str]:
    """Value and trend per report; a dash where the report lacks the figure."""
    return [
        "-" if value is None else f"{value_text(value, figure.unit)}{_trend_text(trend)}"
        for value, trend in zip(figure.values, figure.trends, strict=True)
    ]


def _trend_text(trend: str) -> str:
    return f" ({trend})" if trend in ("better", "worse") else ""


def to_json(comparison: ReportComparison) -> str:
    """The text of compare.json; values, changes and trends are lists in the order of 'reports'."""
    data = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "flags": list(comparison.flags),
        "reports": [
            {
                "label": label,
                "file": file,
                "verdict": report.verdict,
                "device": report.environment["device"],
                "suite": report.provenance.suite,
                "recipe": report.provenance.recipe,
                "started": report.provenance.started,
            }
            for label, file, report in zip(comparison.labels, comparison.files, comparison.reports, strict=True)
        ],
        "checks": [
            {
                "id": row.id,
                "group": row.group,
                "statuses": list(row.statuses),
                "reasons": [None if result is None else result.reason for result in row.results],
                "measurements": [_figure_data(figure) for figure in row.figures],
            }
            for row in comparison.rows
        ],
    }
    return json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _figure_data(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "unit": figure.unit,
        "values": _plain(figure.values),
        "thresholds": _plain(figure.limits),
        "changes": _plain(figure.changes),
        "trends": list(figure.trends),
    }


def _plain(values: Sequence[float | None]) -> list[float | str | None]:
    return [None if value is None else finite_or_text(value) for value in values]
