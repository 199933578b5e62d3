"""Comparing reports: differences are found, what is not comparable is said, and nothing is shown that was not run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from omni_portable.conformance.check import Measurement
from omni_portable.conformance.compare_output import print_comparison, to_json
from omni_portable.conformance.compare_page import to_html
from omni_portable.conformance.compare_reports import ReportComparison, compare_reports
from omni_portable.conformance.report import Report
from tests.conformance.conformance_doubles import BAD, GOOD, Page, report, result


def compared(*reports: Report) -> ReportComparison:
    return compare_reports(reports, [f"{at}.json" for at in range(len(reports))])


def printed(comparison: ReportComparison) -> str:
    stream = StringIO()
    print_comparison(comparison, Console(file=stream, width=200))
    return stream.getvalue()


OTHER = report(
    [
        result("bits", "passed", Measurement("error", 0.2, "", "<=", 1.0), group="identity"),
        result("level", "passed", GOOD, group="memory"),
        result(
            "rate", "recorded", Measurement("speed", 6.0, "images/s"), group="throughput", series={"reward": (0.2,)}
        ),
        result("extra", "not_run", group="identity"),
    ],
    name="other",
    generation="g2",
)
BOTH = compared(report(), OTHER)


def test_rows_hold_every_check_group_by_group() -> None:
    assert [row.id for row in BOTH.rows] == [
        "identity.bits",
        "identity.extra",
        "memory.level",
        "throughput.rate",
        "collectives.second",
    ]
    assert {row.id: row.statuses for row in BOTH.rows} == {
        "identity.bits": ("passed", "passed"),
        "identity.extra": (None, "not_run"),
        "memory.level": ("failed", "passed"),
        "throughput.rate": ("recorded", "recorded"),
        "collectives.second": ("not_run", None),
    }


def test_trends_are_against_the_first_report() -> None:
    better = {(row.id, figure.name) for row, figure, at in BOTH.moved("better") if at == 1}
    worse = {(row.id, figure.name) for row, figure, at in BOTH.moved("worse") if at == 1}
    assert better == {("identity.bits", "error"), ("memory.level", "error")}
    assert worse == {("throughput.rate", "speed")}
    figures = {row.id: row.figures[0] for row in BOTH.rows if row.figures}
    assert figures["identity.bits"].changes == (0.0, pytest.approx(-0.3))
    assert figures["throughput.rate"].trends == ("", "worse")


@pytest.mark.parametrize(
    ("relation", "unit", "first", "second", "trend"),
    [
        ("<=", "", 1.0, 2.0, "worse"),
        ("<=", "", 1.0, 1.04, "same"),
        ("<=", "", 0.0, 0.0, "same"),
        ("<=", "", 0.0, 1e-9, "worse"),
        ("<=", "", 1.0, math.nan, "worse"),
        ("<=", "", math.nan, 1.0, ""),
        ("<=", "", 1.0, math.inf, "worse"),
        ("<=", "", math.inf, math.inf, "same"),
        (">=", "", 4.0, 9.0, ""),
        ("==", "", 3.0, 5.0, "worse"),
        ("==", "", 5.0, 3.0, "better"),
        ("", "s", 1.0, 0.5, "better"),
        ("", "samples/s", 1.0, 0.5, "worse"),
        ("", "bytes", 1.0, 2.0, ""),
        ("", "", 1.0, 2.0, ""),
    ],
)
def test_what_better_means(relation: str, unit: str, first: float, second: float, trend: str) -> None:
    threshold = 3.0 if relation else None

    def one(value: float) -> Report:
        measurement = Measurement("x", value, unit, relation, threshold)  # type: ignore[arg-type]
        status = {None: "recorded", True: "passed", False: "failed"}[measurement.ok]
        return report([result("one", status, measurement)])

    assert compared(one(first), one(second)).rows[0].figures[0].trends[1] == trend


def test_a_share_that_must_be_large_is_better_when_larger() -> None:
    first, second = (report([result("a", "passed", Measurement("x", v, "", ">=", 0.5))]) for v in (0.6, 0.9))
    assert compared(first, second).rows[0].figures[0].trends == ("", "better")


def test_exact_figures_are_held_against_their_own_thresholds() -> None:
    """Two ranks of two are as good as one of one."""
    first, second = (report([result("a", "passed", Measurement("x", v, "", "==", v))]) for v in (2.0, 1.0))
    assert compared(first, second).rows[0].figures[0].trends == ("", "same")


def test_reports_of_one_device_are_numbered() -> None:
    assert compared(report(), report(), OTHER).labels == ("cpu #1", "cpu #2", "other:g2")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"suite": "full"}, "different suites: quick | full"),
        ({"recipe": "mine"}, "different recipes"),
        ({"only": ("memory",)}, "different selections"),
        ({"overrides": ("device.dtype=bfloat16",)}, "different overrides: none | device.dtype=bfloat16"),
        ({"seed": 3}, "different seeds"),
        ({"version": "0.2.0"}, "different versions"),
        ({"commit": "fff"}, "different commits"),
        ({"state": "interrupted"}, "cpu #2: the run is interrupted"),
        ({"modified": True}, "cpu #2: its source tree differed"),
    ],
)
def test_what_makes_a_comparison_shaky_is_said(changes: dict, said: str) -> None:
    comparison = compared(report(), report(**changes))
    assert any(said in flag for flag in comparison.flags)
    assert said in printed(comparison)
    assert said.split(":")[0] in Page(to_html(comparison)).text


def test_other_dtypes_are_said() -> None:
    other = report()
    other.environment["model"]["dtype"] = "bfloat16"
    assert "different dtypes: float32 | bfloat16" in compared(report(), other).flags


@pytest.mark.parametrize("model", [None, "text", ["a list"], {}])
def test_an_environment_that_says_nothing_of_the_model(model: object) -> None:
    other = report()
    other = replace(other, environment={**other.environment, "model": model})
    assert "different dtypes: float32 | unknown" in compared(report(), other).flags


def test_equal_reports_have_nothing_to_tell() -> None:
    comparison = compared(report(), report())
    assert comparison.flags == ()
    assert not list(comparison.moved("better"))
    assert not list(comparison.moved("worse"))
    assert "0 with different statuses; 0 figures better and 0 worse" in printed(comparison)


def test_the_terminal_shows_statuses_and_differences() -> None:
    text = printed(BOTH)
    assert "5 checks, 1 with different statuses; 2 figures better and 1 worse than in cpu" in text
    line = next(line for line in text.splitlines() if "identity.extra" in line)
    assert "not selected" in line
    assert "not run" in line
    assert "passed" not in line
    assert "6 images/s (worse)" in text


def test_the_page_is_whole_and_escaped() -> None:
    evil = report(
        [result("bits", "failed", BAD, reason="<script>", series={"<b>": (1.0, 2.0)})], name="<i>", recipe="<u>"
    )
    text = to_html(compared(report(), evil))
    page = Page(text)
    assert not {"script", "i", "u"} & set(page.tags)
    assert [link for link in page.references if not link.startswith(("#", "data:,"))] == []
    assert "differ" in page.text


def test_curves_of_several_devices_share_a_chart() -> None:
    text = to_html(BOTH)
    assert text.count("<figure>") == 1
    assert "cpu reward" in Page(text).text
    assert "other:g2 reward" in Page(text).text


def test_json_holds_everything() -> None:
    data = json.loads(to_json(BOTH))
    assert [entry["label"] for entry in data["reports"]] == ["cpu", "other:g2"]
    row = next(entry for entry in data["checks"] if entry["id"] == "identity.bits")
    assert row["statuses"] == ["passed", "passed"]
    assert row["measurements"] == [
        {
            "name": "error",
            "unit": "",
            "values": [0.5, 0.2],
            "thresholds": [1.0, 1.0],
            "changes": [0.0, pytest.approx(-0.3)],
            "trends": ["", "better"],
        }
    ]
    extra = next(entry for entry in data["checks"] if entry["id"] == "identity.extra")
    assert extra["statuses"] == [None, "not_run"]
    assert extra["reasons"][1] == "why extra is not_run"
