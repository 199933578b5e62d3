"""Determinism checks: they pass where bits repeat and fail where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from omni_portable.conformance.checks import determinism
from omni_portable.conformance.checks.determinism import CHECKS
from omni_portable.conformance.measures.training_step import step_checksums
from omni_portable.conformance.runner import run_check
from omni_portable.contracts.device import DeterminismReport
from tests.conformance.conformance_doubles import Altered, context, cpu

BY_ID = {check.id: check for check in CHECKS}


@pytest.mark.parametrize("name", ["report", "random-state", "in-process"])
def test_the_cpu_repeats_itself(tmp_path: Path, name: str) -> None:
    found = run_check(context(tmp_path), BY_ID[f"determinism.{name}"])
    assert found.status == "passed", found.reason


def test_a_step_covers_losses_gradients_and_weights(tmp_path: Path) -> None:
    found = step_checksums(context(tmp_path), 0)
    assert {"loss before", "loss after"} <= set(found)
    gradients = [name for name in found if name.startswith("gradient of ")]
    assert len(gradients) > 50
    assert {name.removeprefix("gradient of ") for name in gradients} < set(found)


def test_a_step_that_drifts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def drifting(_: Any, seed: int) -> dict[str, str]:
        calls.append(seed)
        return {"loss before": "same", "gradient of x": str(len(calls))}

    monkeypatch.setattr(determinism, "step_checksums", drifting)
    found = run_check(context(tmp_path), BY_ID["determinism.in-process"])
    assert found.status == "failed"
    assert "first different: gradient of x" in found.detail


def test_a_step_that_ignores_its_seed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "step_checksums", lambda *_: {"loss before": "always"})
    assert (
        "tensors_that_another_seed_changes is 0" in run_check(context(tmp_path), BY_ID["determinism.in-process"]).reason
    )


def test_processes_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "step_checksums", lambda *_: {"loss before": "a"})
    for said, status in (("a", "passed"), ("b", "failed")):
        answer = Altered(None, values={"loss before": said}, error="")
        monkeypatch.setattr(determinism, "run_workers", lambda *_, found=answer: [found])
        assert run_check(context(tmp_path), BY_ID["determinism.across-processes"]).status == status


def test_the_error_of_the_other_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Altered(None, values={}, error="no such device")
    monkeypatch.setattr(determinism, "run_workers", lambda *_: [answer])
    found = run_check(context(tmp_path), BY_ID["determinism.across-processes"])
    assert found.status == "failed"
    assert "the second process: no such device" in found.reason


@pytest.mark.parametrize("broken", ["set_rng_state", "manual_seed"])
def test_a_generator_that_cannot_be_set_back_is_found(tmp_path: Path, broken: str) -> None:
    device = cpu(**{broken: lambda _: None})
    device.determinism = Altered(device.determinism, enable=lambda _: None)
    torch.manual_seed(5)
    assert run_check(context(tmp_path, device), BY_ID["determinism.random-state"]).status == "failed"


def test_a_device_that_sets_nothing_fails(tmp_path: Path) -> None:
    nothing = Altered(None, enable=lambda _: DeterminismReport({}, ("anything",)))
    assert run_check(context(tmp_path, cpu(determinism=nothing)), BY_ID["determinism.report"]).status == "failed"
