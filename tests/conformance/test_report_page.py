"""report.html: readable, self-contained, nothing unescaped, failures first."""

from __future__ import annotations

import re

import pytest

from omni_portable.conformance.check import Measurement
from omni_portable.conformance.report_page import CONTENTS, to_html
from omni_portable.conformance.report_plots import limit_used
from tests.conformance.conformance_doubles import GOOD, RESULTS, Page, report, result

EVIL = "<script>alert('x')</script>\"&"


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = to_html(report())
    page = Page(text)
    assert "script" not in page.tags
    outside = [link for link in page.references if not link.startswith(("#", "data:,"))]
    assert outside == []
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org)", text)
    assert len(page.ids) == len(set(page.ids))
    assert [link for link in page.references if link.startswith("#") and link[1:] not in page.ids] == []


def test_sections_stand_in_the_order_of_the_contents() -> None:
    page = Page(to_html(report()))
    assert [anchor for anchor in page.ids if anchor in CONTENTS] == list(CONTENTS)


def test_a_manager_reads_the_verdict_first_and_then_what_to_do() -> None:
    text = Page(to_html(report())).text
    order = ["failed", "At least one check failed", "memory.level", "why level is failed", "mend level", "why second"]
    found = [text.index(piece) for piece in order]
    assert found == sorted(found)
    assert "4 of 40 checks were selected" in text


@pytest.mark.parametrize(
    ("results", "state", "said"),
    [
        ([result("a", "passed", GOOD)], "complete", "No check failed."),
        ([result("a", "not_run")], "complete", "so nothing is proved"),
        ([result("a", "passed", GOOD)], "interrupted", "did not reach its end"),
    ],
)
def test_verdicts_in_words(results: list, state: str, said: str) -> None:
    assert said in Page(to_html(report(results, state=state))).text


def test_every_status_is_a_square_of_its_own() -> None:
    text = to_html(report())
    for status, symbol in {"passed": "\u2713", "failed": "\u2717", "recorded": "\u2022", "not_run": "\u2013"}.items():
        assert re.search(f'class="cell {status}"[^>]*>{symbol}<', text), status


def test_everything_is_escaped() -> None:
    evil = result(
        "evil",
        "failed",
        Measurement(EVIL, 2.0, EVIL, "<=", 1.0),
        title=EVIL,
        reason=EVIL,
        remedy=EVIL,
        detail=EVIL,
        facts={EVIL: EVIL},
        series={EVIL: (1.0, 2.0)},
    )
    made = report([evil, result("a", "not_run", reason=EVIL)], recipe=EVIL, command=EVIL, only=(EVIL,))
    made.environment["device"]["model"] = EVIL
    made.environment["versions"][EVIL] = EVIL
    made.environment["model"]["attention"][EVIL] = {"family": EVIL}
    text = to_html(made)
    assert "script" not in Page(text).tags
    assert "alert('x')" not in text.replace("&#x27;", "?")


def test_a_model_that_cannot_be_resolved_is_said() -> None:
    made = report()
    made.environment["model"].clear()
    made.environment["model"]["error"] = "no kernel"
    assert "could not be resolved here: no kernel" in Page(to_html(made)).text


def test_curves_are_drawn_once_per_check_that_has_some() -> None:
    text = to_html(report())
    assert text.count("<figure>") == 1
    assert "throughput.rate" in Page(text).text
    assert "<figure>" not in to_html(report(RESULTS[:2]))


@pytest.mark.parametrize(
    ("measurement", "share"),
    [
        (Measurement("a", 0.5, "", "<=", 2.0), 0.25),
        (Measurement("a", 3.0, "", "<=", 2.0), 1.5),
        (Measurement("a", 0.95, "", ">=", 0.95), 1.0),
        (Measurement("a", 0.25, "", ">=", 0.5), 2.0),
        (Measurement("a", 5.0, "", ">=", 1.0), None),
        (Measurement("a", 0.0, "", "<=", 0.0), None),
        (Measurement("a", 1.0, "", "==", 1.0), None),
        (Measurement("a", 1.0), None),
    ],
)
def test_share_of_the_limit(measurement: Measurement, share: float | None) -> None:
    assert limit_used(measurement) == share


def test_the_closest_figures_come_first_and_broken_ones_are_marked() -> None:
    results = [
        result("near", "passed", Measurement("near_one", 0.9, "", "<=", 1.0)),
        result("broken", "failed", Measurement("over_it", float("inf"), "", "<=", 1.0)),
        result("far", "passed", Measurement("far_one", 0.1, "", "<=", 1.0)),
    ]
    text = Page(to_html(report(results))).text
    start = text.index("Closest to their limits")
    positions = [text.index(name, start) for name in ("over_it", "not finite", "near_one", "90.0%", "far_one")]
    assert positions == sorted(positions)
