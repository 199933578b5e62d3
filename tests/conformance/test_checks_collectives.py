"""Collective checks in real processes, and what they say when a rank fails, lies or hangs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from omni_portable.conformance import children, worker
from omni_portable.conformance.checks import collectives
from omni_portable.conformance.checks.collectives import CHECKS
from omni_portable.conformance.children import Answer, Task, run_workers
from omni_portable.conformance.runner import run_check
from omni_portable.contracts import registry
from omni_portable.contracts.errors import DeviceError
from tests.conformance.conformance_doubles import Altered, context, cpu

BY_ID = {check.id: check for check in CHECKS}
TIMES = {"all_reduce": 0.1, "barrier": 0.2}


def test_two_processes_agree(tmp_path: Path) -> None:
    found = run_check(context(tmp_path), BY_ID["collectives.self-test"])
    assert found.status == "passed", found.reason
    values = {measurement.name: measurement.value for measurement in found.measurements}
    assert values["ranks_with_right_answers"] == 2
    assert {"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all"} <= set(values)


def answered(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> list[Task]:
    """Replace the processes by their answers; what was asked of them."""
    asked: list[Task] = []

    def run(tasks: list[Task], *_: object, wait_for: int | None = None) -> list[Answer]:
        asked.extend(tasks)
        return list(answers)[: len(tasks) if wait_for is None else wait_for]

    monkeypatch.setattr(collectives, "run_workers", run)
    return asked


def test_the_failing_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, Answer(TIMES), Answer({}, "all_reduce gave a wrong result"))
    found = run_check(context(tmp_path), BY_ID["collectives.self-test"])
    assert found.status == "failed"
    assert "rank 1 of 2: all_reduce gave a wrong result" in found.reason


def accelerator(monkeypatch: pytest.MonkeyPatch, count: int) -> Any:
    """The CPU as an accelerator of which `count` are here."""
    spec = replace(registry.spec("device", "cpu"), capabilities={"accelerator": True})
    monkeypatch.setattr(collectives, "registry", Altered(registry, spec=lambda *_: spec))
    identity = replace(cpu().identity(), count=count)
    return cpu(identity=lambda: identity)


@pytest.mark.parametrize(("count", "ranks"), [(1, 1), (2, 2), (8, 2)])
def test_ranks_follow_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, ranks: int) -> None:
    asked = answered(monkeypatch, *[Answer(TIMES)] * ranks)
    here = context(tmp_path, accelerator(monkeypatch, count))
    found = run_check(here, BY_ID["collectives.self-test"])
    assert found.status == "passed"
    assert len(asked) == ranks
    assert ("nothing is proved about ranks reaching each other" in found.detail) == (ranks == 1)


def test_a_missing_rank_needs_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_check(context(tmp_path, accelerator(monkeypatch, 1)), BY_ID["collectives.late-rank"])
    assert (found.status, found.reason) == ("not_run", "2 ranks need 2 devices, and one is here")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Answer({"noticed": "rank 1 is missing"}), "passed"),
        (Answer({}), "failed"),
        (Answer({}, "could not join"), "failed"),
    ],
)
def test_a_missing_rank_must_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, status: str
) -> None:
    answered(monkeypatch, answer)
    assert run_check(context(tmp_path), BY_ID["collectives.late-rank"]).status == status


def test_channels_must_be_the_declared_ones(tmp_path: Path) -> None:
    assert run_check(context(tmp_path), BY_ID["collectives.channels"]).status == "passed"
    for offered in ((), ("shared_memory", "ipc")):
        device = cpu(collectives=Altered(cpu().collectives, weight_channels=lambda found=offered: found))
        assert run_check(context(tmp_path, device), BY_ID["collectives.channels"]).status == "failed"


def interpreter(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    """Workers run `body` in place of the worker module: argv is (-P, -m, MODULE, TASK, ARGUMENTS, RESULT)."""
    script = folder / "interpreter.sh"
    python = folder / "body.py"
    python.write_text(body)
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {python} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(children.sys, "executable", str(script))


def test_a_worker_that_crashes_is_an_error_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter(monkeypatch, tmp_path, "import sys; print('first'); sys.exit('the driver is gone')")
    with pytest.raises(DeviceError, match=r"x \(process 0\) ended with status 1; .*the driver is gone"):
        run_workers([Task("x", {})], cpu(), tmp_path)


def test_a_worker_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    interpreter(
        monkeypatch, tmp_path, f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    with pytest.raises(DeviceError, match="did not answer in time"):
        run_workers([Task("x", {})], cpu(), tmp_path, timeout_s=1.0)
    if pid.exists():
        assert not psutil.pid_exists(int(pid.read_text()))


def test_answers_come_in_order_and_the_device_sets_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "caller")
    body = (
        "import json, os, sys; json.dump({'answer': {'rank': os.environ['LOCAL_RANK'], 'kept': os.environ['KEPT'],"
        " 'set': os.environ['SET'], 'arguments': json.loads(sys.argv[-2])}}, open(sys.argv[-1], 'w'))"
    )
    interpreter(monkeypatch, tmp_path, body)
    device = cpu(environment=lambda role: {"KEPT": "device", "SET": role})
    answers = run_workers([Task("x", {"n": 0}), Task("x", {"n": 1})], device, tmp_path)
    assert [answer.values for answer in answers] == [
        {"rank": str(n), "kept": "caller", "set": "actor", "arguments": {"n": n}} for n in range(2)
    ]


def test_a_worker_says_what_the_device_refused(tmp_path: Path) -> None:
    arguments = {"device": "nobody", "rank": 0, "world": 1, "rendezvous": str(tmp_path / "r"), "timeout_s": 1.0}
    result = tmp_path / "result.json"
    assert worker.main(["collectives", json.dumps(arguments), str(result)]) == 0
    assert "no device 'nobody' is registered" in json.loads(result.read_text())["error"]
