"""report.json: what is written can be read, and what no run can have written is refused."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_portable.conformance import report_file
from omni_portable.conformance.check import Group, Measurement, Status
from omni_portable.conformance.report import Report
from omni_portable.conformance.report_file import SCHEMA_FILE, ReportFileError, read_report, to_data, to_json
from omni_portable.conformance.schema_check import problems
from tests.conformance.conformance_doubles import BAD, GOOD, PLAIN, RESULTS, report, result

TEXT = to_json(report())


def written(folder: Path, content: Any) -> Path:
    path = folder / "report.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refused(folder: Path, content: Any) -> str:
    with pytest.raises(ReportFileError) as caught:
        read_report(written(folder, content))
    assert caught.value.exit_code == 2
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.encode())
    found = read_report(path)
    assert math.isnan(found.results[2].series["reward"][1])
    assert to_data(found) == to_data(report())
    assert read_report(tmp_path).verdict == found.verdict == "failed"


@given(
    value=st.floats(),
    threshold=st.none() | st.floats(),
    relation=st.sampled_from(["", "<=", ">=", "=="]),
    unit=st.text(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_number_survives(tmp_path: Path, value: float, threshold: float | None, relation: Any, unit: str) -> None:
    measurement = Measurement("x", value, unit, relation, threshold)
    status = {None: "recorded", True: "passed", False: "failed"}[measurement.ok]
    before = report([result("one", status, measurement)])
    after = read_report(written(tmp_path, to_json(before).encode()))
    assert repr(after.results[0].measurements) == repr((replace(measurement, value=float(value)),))


def test_it_is_strict_json() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(TEXT, parse_constant=refuse)


def test_the_published_schema_describes_it() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    assert list(problems(json.loads(TEXT), schema)) == []
    groups = schema["$defs"]["check"]["properties"]["group"]["enum"]
    assert tuple(groups) == Group.__args__
    assert tuple(schema["$defs"]["check"]["properties"]["status"]["enum"]) == Status.__args__


def required(schema: dict[str, Any], data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of everything in `data` that its schema requires."""
    schema = schema.get("$ref") and SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")] or schema
    if isinstance(data, dict):
        for name in schema.get("required", ()):
            yield (*place, name)
        for name, inner in schema.get("properties", {}).items():
            if name in data:
                yield from required(inner, data[name], (*place, name))
    if isinstance(data, list) and "items" in schema:
        yield from required(schema["items"], data[0], (*place, 0)) if data else ()


SCHEMA = json.loads(SCHEMA_FILE.read_text())
PLACES = sorted(required(SCHEMA, json.loads(TEXT)), key=str)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
@pytest.mark.parametrize("change", ["removed", "of another type"])
def test_every_key_is_checked(tmp_path: Path, place: tuple[Any, ...], change: str) -> None:
    data = json.loads(TEXT)
    target = data
    for part in place[:-1]:
        target = target[part]
    if change == "removed":
        del target[place[-1]]
    else:
        target[place[-1]] = [{}]
    message = refused(tmp_path, data)
    assert str(place[-1]) in message or place[0] in ("schema", "schema_version")


def test_there_are_keys_to_check() -> None:
    assert len(PLACES) > 40


@given(st.integers(0, len(TEXT.encode()) - 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    assert "damaged" in refused(tmp_path, TEXT.encode()[:length])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "damaged"),
        (b"[1, 2]", "no conformance report"),
        (b"{}", "no conformance report"),
        (b'{"schema": "omni-portable/conformance-comparison"}', "no conformance report"),
        (b"[" * 100_000, "damaged"),
        (b'{"value": NaN}', "damaged"),
        (b'{"value": 1%s}' % (b"0" * 400), "damaged or no JSON: the number 100000000000... is too large"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in refused(tmp_path, content)


def test_a_source_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_file, "LARGEST_BYTES", 1 << 20)
    with pytest.raises(ReportFileError, match="/dev/zero is damaged or no JSON: it has more than 1 MiB"):
        read_report(Path("/dev/zero"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportFileError, match="gone.json: No such file"):
        read_report(tmp_path / "gone.json")


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_other_schema_versions_are_refused(tmp_path: Path, version: Any) -> None:
    message = refused(tmp_path, json.loads(TEXT) | {"schema_version": version})
    assert f"schema version {version!r}" in message
    assert "reads 1" in message


def changed(change: str, at: int, **values: Any) -> dict[str, Any]:
    data = copy.deepcopy(json.loads(TEXT))
    data["checks"][at] |= values
    statuses = [entry["status"] for entry in data["checks"]]
    data["counts"] = {status: statuses.count(status) for status in data["counts"]}
    if "failed" not in statuses:
        data["verdict"] = "passed" if "passed" in statuses else "nothing_passed"
    return data


LYING = {
    "a broken threshold that passes": changed("", 1, status="passed", reason=""),
    "a pass that measured nothing": changed("", 0, measurements=[]),
    "a pass that judged nothing": changed("", 2, status="passed"),
    "not run and passed": changed("", 3, status="passed", reason=""),
    "a failure without a reason": changed("", 1, reason=""),
    "not run without a reason": changed("", 3, reason=""),
    "not run with measurements": changed("", 0, status="not_run", reason="x"),
    "recorded with a threshold": changed("", 0, status="recorded"),
    "recorded without a figure": changed("", 2, measurements=[]),
    "one check twice": changed("", 1, id="identity.bits"),
    "one figure twice": changed("", 0, measurements=2 * json.loads(TEXT)["checks"][0]["measurements"]),
    "a check of another group": changed("", 0, group="memory"),
}


@pytest.mark.parametrize("lie", LYING)
def test_reports_that_contradict_themselves_are_refused(tmp_path: Path, lie: str) -> None:
    assert "damaged" in refused(tmp_path, LYING[lie])


def test_counts_and_verdict_must_follow(tmp_path: Path) -> None:
    assert "do not follow" in refused(tmp_path, json.loads(TEXT) | {"verdict": "passed"})
    data = json.loads(TEXT)
    data["counts"]["failed"] = 0
    assert "do not follow" in refused(tmp_path, data)


def test_a_figure_and_its_verdict_must_agree(tmp_path: Path) -> None:
    data = json.loads(TEXT)
    data["checks"][1]["measurements"][0]["value"] = 0.5
    assert "does not follow from its value" in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("made", "verdict", "code"),
    [
        (report(), "failed", 1),
        (report([result("a", "passed", GOOD)]), "passed", 0),
        (report([result("a", "passed", GOOD), result("b", "not_run")]), "passed", 0),
        (report([result("a", "recorded", PLAIN)]), "nothing_passed", 1),
        (report([result("a", "not_run")]), "nothing_passed", 1),
        (report([result("a", "passed", GOOD)], state="interrupted"), "incomplete", 1),
        (report([result("a", "passed", GOOD)], state="running"), "incomplete", 1),
        (report([result("a", "failed", BAD)], state="interrupted"), "failed", 1),
    ],
)
def test_verdicts(made: Report, verdict: str, code: int) -> None:
    assert (made.verdict, made.exit_code) == (verdict, code)
    assert sum(made.counts.values()) == len(made.results)


def test_device_names() -> None:
    assert report(RESULTS).device == "cpu"
    assert report(RESULTS, name="other", generation="g2").device == "other:g2"
