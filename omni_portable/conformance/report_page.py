"""report.html: the verdict first, then what failed and what to do, then everything that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from omni_portable.conformance.check import Result, Status
from omni_portable.conformance.page import badge, cell, document, lines
from omni_portable.conformance.report import SENTENCES, STATUSES, Report
from omni_portable.conformance.report_environment import environment_section, provenance_section
from omni_portable.conformance.report_plots import plots_section
from omni_portable.conformance.wording import STATUS_WORDS, threshold_text, value_text
from omni_portable.trainer.report.markup import Raw, definitions, details, esc, section, table

CONTENTS = {
    "verdict": "Verdict",
    "map": "Map",
    "failed": "Failed",
    "not-run": "Not run",
    "plots": "Plots",
    "checks": "All checks",
    "environment": "Environment",
    "provenance": "Provenance",
}
_COLOURS = {"passed": "good", "failed": "bad", "incomplete": "unsure", "nothing_passed": "unsure"}


def to_html(report: Report) -> str:
    """The document's text."""
    identity, provenance = report.environment["device"], report.provenance
    return document(
        f"Conformance of {report.device}",
        f"{identity['model']} · recipe {provenance.recipe} · {provenance.suite} suite · {provenance.started}",
        CONTENTS,
        [
            _verdict(report),
            section("Groups and statuses", "map", _map(report)),
            section("Failed checks and what to do", "failed", _failures(report)),
            section("Not run", "not-run", _not_run(report)),
            plots_section(report),
            section("All checks", "checks", _all(report)),
            environment_section(report),
            provenance_section(report),
        ],
    )


def _verdict(report: Report) -> Raw:
    counts, provenance = report.counts, report.provenance
    word = report.verdict.replace("_", " ")
    cards: list[tuple[Status, str]] = [("passed", "good"), ("failed", "bad" if counts["failed"] else "")]
    cards += [("recorded", ""), ("not_run", "")]
    items = "".join(
        f'<div class="card {colour}"><b>{counts[status]}</b><span>{STATUS_WORDS[status]}</span></div>'
        for status, colour in cards
    )
    selected = f"{len(report.results)} of {provenance.catalogue} checks were selected"
    named = f", by --only {', '.join(provenance.only)}" if provenance.only else f", the {provenance.suite} suite"
    return section(
        "Verdict",
        "verdict",
        f'<p class="verdict {_COLOURS[report.verdict]}">{esc(word)}</p>',
        f'<p class="lead">{esc(SENTENCES[report.verdict])}</p>',
        f'<div class="cards">{items}</div>',
        f"<p>{esc(selected + named)}. 'Recorded' has no threshold; 'not run' proves nothing.</p>",
    )


def _map(report: Report) -> Raw:
    """Groups by statuses with their counts, and every check as a square that leads to its figures."""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("group", *STATUS_WORDS.values(), "checks"))
    rows = []
    for group, members in _groups(report.results):
        counts = {status: sum(result.status == status for result in members) for status in STATUSES}
        numbers = "".join(
            f'<td class="{status}{" full" if count else ""}">{count or "·"}</td>' for status, count in counts.items()
        )
        squares = "".join(cell(result.status, result.id, result.id) for result in members)
        rows.append(f'<tr><th scope="row">{esc(group)}</th>{numbers}<td class="checks">{squares}</td></tr>')
    body = "".join(rows)
    return Raw(
        f'<div class="scroll"><table class="heat"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _failures(report: Report) -> str:
    failed = report.with_status("failed")
    if not failed:
        return "<p>None.</p>"
    return "".join(
        f'<div class="failure"><h3><a href="#{esc(result.id)}">{esc(result.id)}</a></h3>'
        f"<p>Claimed: {esc(result.title)}</p>{lines(result.reason)}"
        f"<p><b>What to do:</b> {esc(result.remedy)}</p></div>"
        for result in failed
    )


def _not_run(report: Report) -> str:
    rows = [(result.id, result.title, result.reason) for result in report.with_status("not_run")]
    return table(("check", "would claim", "why it was not run"), rows) if rows else "<p>None.</p>"


def _all(report: Report) -> str:
    return "".join(
        f"<h3>{esc(group)}</h3>{''.join(map(_check, members))}" for group, members in _groups(report.results)
    )


def _check(result: Result) -> str:
    summary = Raw(f"{badge(result.status)} {esc(result.id)} · {esc(result.title)} · {result.seconds:.2f} s")
    parts = [lines(result.reason)] if result.reason else []
    parts += [lines(result.detail)] if result.detail else []
    rows = [
        (m.name, value_text(m.value, m.unit), threshold_text(m), _held(m.ok), repr(float(m.value)))
        for m in result.measurements
    ]
    parts += [table(("measured", "value", "asked for", "verdict", "exact"), rows)] if rows else []
    parts += [definitions(result.facts)] if result.facts else []
    return f'<div id="{esc(result.id)}">{details(summary, "".join(parts))}</div>'


def _held(ok: bool | None) -> Raw:
    if ok is None:
        return Raw("recorded")
    return Raw('<span class="badge good">holds</span>' if ok else '<span class="badge bad">broken</span>')


def _groups(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    return [(group, list(members)) for group, members in groupby(results, key=lambda result: result.group)]
