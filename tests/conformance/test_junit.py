"""junit.xml: a document that CI systems read, with nothing unproved among what passed."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from omni_portable.conformance.junit import to_junit
from tests.conformance.conformance_doubles import GOOD, report, result


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text.encode())


def test_totals_count_only_what_was_proved() -> None:
    root = parsed(to_junit(report()))
    assert root.tag == "testsuites"
    assert {name: root.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
    }
    assert [suite.attrib["name"] for suite in root] == ["identity", "memory", "throughput", "collectives"]
    for suite in root:
        assert [child.tag for child in suite][0] == "properties"
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase")) == 1
        assert suite.attrib["timestamp"] == "2026-01-02T03:04:05"


def test_cases_say_what_happened() -> None:
    cases = {case.attrib["name"]: case for case in parsed(to_junit(report())).iter("testcase")}
    assert [child.tag for child in cases["identity.bits"]] == ["system-out"]
    failure = cases["memory.level"].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "why level is failed"
    assert "mend level" in (failure.text or "")
    recorded, absent = (cases[name].find("skipped") for name in ("throughput.rate", "collectives.second"))
    assert recorded is not None
    assert recorded.attrib["message"] == "recorded: recorded, not judged"
    assert absent is not None
    assert absent.attrib["message"] == "not run: why second is not_run"
    assert "error 0.5 <= 1" in (cases["identity.bits"].findtext("system-out") or "")


@given(st.text(), st.text())
def test_any_text_makes_valid_xml(reason: str, detail: str) -> None:
    made = report(
        [result("a", "failed", GOOD, reason=reason or "x", detail=detail), result("b", "not_run", reason=reason or "x")]
    )
    made.environment["device"]["model"] = detail
    assert len(list(parsed(to_junit(made)).iter("testcase"))) == 2
