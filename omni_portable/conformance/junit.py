"""The results as JUnit XML, for CI systems: a suite per group, a case per check."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import groupby

from omni_portable.conformance.check import Result
from omni_portable.conformance.report import Report
from omni_portable.conformance.wording import measurement_text

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


def to_junit(report: Report) -> str:
    """The XML document. Checks that were not run, and those that record without judging, are 'skipped' with a reason:
    CI systems know no other way to say that nothing was proved."""
    root = ET.Element("testsuites", _totals(report.results) | {"name": f"conformance of {_clean(report.device)}"})
    for group, results in groupby(report.results, key=lambda result: result.group):
        root.append(_suite(report, group, list(results)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, group: str, results: Sequence[Result]) -> ET.Element:
    stamp = report.provenance.started.removesuffix("Z").partition("+")[0]
    suite = ET.Element("testsuite", {"name": group} | _totals(results) | {"timestamp": stamp})
    properties = ET.SubElement(suite, "properties")
    identity = report.environment["device"]
    facts = {
        "device": report.device,
        "model": identity["model"],
        "suite": report.provenance.suite,
        "recipe": report.provenance.recipe,
        "version": report.provenance.version,
    }
    for name, value in facts.items():
        ET.SubElement(properties, "property", {"name": name, "value": _clean(str(value))})
    for result in results:
        suite.append(_case(result))
    return suite


def _case(result: Result) -> ET.Element:
    case = ET.Element(
        "testcase", {"classname": f"conformance.{result.group}", "name": result.id, "time": f"{result.seconds:.3f}"}
    )
    if result.status == "failed":
        failure = ET.SubElement(case, "failure", {"message": _line(result.reason), "type": "failed"})
        failure.text = _clean(f"{result.reason}\nto fix it: {result.remedy}")
    elif result.status != "passed":
        why = result.reason if result.status == "not_run" else "recorded, not judged"
        ET.SubElement(case, "skipped", {"message": _line(f"{result.status.replace('_', ' ')}: {why}")})
    if result.measurements:
        lines = [result.title, *map(measurement_text, result.measurements), result.detail]
        ET.SubElement(case, "system-out").text = _clean("\n".join(line for line in lines if line))
    return case


def _totals(results: Sequence[Result]) -> dict[str, str]:
    return {
        "tests": str(len(results)),
        "failures": str(sum(result.status == "failed" for result in results)),
        "errors": "0",
        "skipped": str(sum(result.status in ("not_run", "recorded") for result in results)),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }


def _line(text: str) -> str:
    return _clean(" ".join(text.split()))


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
