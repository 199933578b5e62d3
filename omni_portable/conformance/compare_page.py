"""compare.html: devices side by side, for people who decide."""

from __future__ import annotations

from omni_portable.conformance.compare_output import ABSENT, figure_cells
from omni_portable.conformance.compare_reports import Figure, ReportComparison, Row
from omni_portable.conformance.page import badge, document
from omni_portable.conformance.report_plots import check_chart
from omni_portable.conformance.wording import value_text
from omni_portable.trainer.report.markup import Raw, details, esc, section, table

CONTENTS = {
    "reports": "Reports",
    "statuses": "Statuses",
    "differences": "Better and worse",
    "curves": "Curves",
    "figures": "All figures",
}


def to_html(comparison: ReportComparison) -> str:
    """The document's text."""
    return document(
        f"Conformance of {' and '.join(comparison.labels)}",
        f"{len(comparison.reports)} reports; differences are against {comparison.labels[0]}",
        CONTENTS,
        [
            section("Reports", "reports", _flags(comparison), _reports(comparison)),
            section("Statuses", "statuses", _statuses(comparison)),
            section("Better and worse", "differences", _differences(comparison)),
            section("Curves", "curves", f'<div class="charts">{_curves(comparison)}</div>'),
            section("All figures", "figures", _figures(comparison)),
        ],
    )


def _flags(comparison: ReportComparison) -> str:
    if not comparison.flags:
        return "<p>Same suite, recipe, seed, dtype and version everywhere.</p>"
    items = "".join(f"<li>{esc(flag)}</li>" for flag in comparison.flags)
    return f'<aside class="warning" aria-label="notes">Compare with care:<ul>{items}</ul></aside>'


def _reports(comparison: ReportComparison) -> Raw:
    rows = [
        (
            label,
            report.environment["device"]["model"],
            report.verdict.replace("_", " "),
            *(report.counts[status] for status in report.counts),
            report.provenance.suite,
            report.provenance.recipe,
            report.provenance.started,
            file,
        )
        for label, file, report in zip(comparison.labels, comparison.files, comparison.reports, strict=True)
    ]
    counts = ("passed", "failed", "recorded", "not run")
    return table(("device", "model", "verdict", *counts, "suite", "recipe", "started", "file"), rows)


def _statuses(comparison: ReportComparison) -> Raw:
    """Checks by devices; those whose statuses differ in bold."""
    head = "".join(f'<th scope="col">{esc(name)}</th>' for name in ("check", *comparison.labels, "reasons"))
    body = "".join(_status_row(row) for row in comparison.rows)
    return Raw(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def _status_row(row: Row) -> str:
    name = f"<b>{esc(row.id)}</b>" if row.differs else esc(row.id)
    cells = "".join(f"<td>{ABSENT if result is None else badge(result.status)}</td>" for result in row.results)
    reasons = dict.fromkeys(result.reason for result in row.results if result is not None and result.reason)
    return f'<tr><th scope="row">{name}</th>{cells}<td class="lines">{esc("; ".join(reasons))}</td></tr>'


def _differences(comparison: ReportComparison) -> str:
    rows = [
        (
            f"{row.id} {figure.name}",
            comparison.labels[at],
            _shown(figure, 0),
            _shown(figure, at),
            _change(figure, at),
            Raw(f'<b class="{trend}">{trend}</b>'),
        )
        for trend in ("worse", "better")
        for row, figure, at in comparison.moved(trend)
    ]
    if not rows:
        return "<p>No figure with a good and a bad direction differs by more than 5 %.</p>"
    return table(("figure", "device", comparison.labels[0], "here", "change", "verdict"), rows)


def _shown(figure: Figure, at: int) -> str:
    value = figure.values[at]
    return "-" if value is None else value_text(value, figure.unit)


def _change(figure: Figure, at: int) -> str:
    change, first = figure.changes[at], figure.values[0]
    if change is None:
        return "-"
    text = f"{'+' if change > 0 else ''}{value_text(change, figure.unit)}"
    return f"{text} ({change / abs(first):+.0%})" if first else text


def _curves(comparison: ReportComparison) -> str:
    charts = ""
    for row in comparison.rows:
        series = {
            label: result.series
            for label, result in zip(comparison.labels, row.results, strict=True)
            if result is not None and result.series
        }
        charts += check_chart(row.id, row.title, series) if series else ""
    return charts


def _figures(comparison: ReportComparison) -> str:
    parts = []
    for row in comparison.rows:
        rows = [(figure.name, *figure_cells(figure)) for figure in row.figures]
        if rows:
            parts.append(details(f"{row.id} · {row.title}", table(("figure", *comparison.labels), rows)))
    return "".join(parts)
