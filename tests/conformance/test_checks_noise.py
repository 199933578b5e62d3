"""Noise checks: the recorded bits hold here, and each way of losing them is found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_portable.conformance.checks import noise
from omni_portable.conformance.checks.noise import CHECKS
from omni_portable.conformance.runner import run_check
from tests.conformance.conformance_doubles import context, cpu

BY_ID = {check.id: check for check in CHECKS}


@pytest.mark.parametrize("name", BY_ID)
def test_it_holds_here(tmp_path: Path, name: str) -> None:
    assert run_check(context(tmp_path), BY_ID[name]).status == "passed"


def test_other_bits_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = noise.normal

    def normal(seed: int, shape: Sequence[int]) -> torch.Tensor:
        drawn = real(seed, shape)
        drawn.flatten()[-1] = torch.nextafter(drawn.flatten()[-1], torch.tensor(9.0))
        return drawn

    monkeypatch.setattr(noise, "normal", normal)
    found = run_check(context(tmp_path), BY_ID["noise.recorded"])
    assert found.status == "failed"
    assert "differing_draws is 5" in found.reason


def test_a_copy_that_flushes_subnormal_numbers_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.Tensor.to

    def to(self: torch.Tensor, *target: Any) -> torch.Tensor:
        moved = real(self, *target)
        return torch.where(moved.abs() < 1.2e-38, torch.zeros(()), moved) if target == ("cpu",) else moved

    monkeypatch.setattr(torch.Tensor, "to", to)
    found = run_check(context(tmp_path, cpu()), BY_ID["noise.transfer"])
    assert found.status == "failed"
    assert "changed_numbers is 3" in found.reason


@pytest.mark.parametrize("fault", ["position in the batch", "size of the batch", "one noise for all"])
def test_noise_that_depends_on_its_batch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    real = noise.unit_noise

    def unit_noise(requests: Any, step: int, shape: Sequence[int]) -> torch.Tensor:
        drawn = real(requests, step, shape)
        if fault == "position in the batch":
            return drawn + torch.arange(len(requests)).reshape(-1, 1, 1, 1)
        return drawn * len(requests) if fault == "size of the batch" else torch.ones_like(drawn)

    monkeypatch.setattr(noise, "unit_noise", unit_noise)
    assert run_check(context(tmp_path), BY_ID["noise.batches"]).status == "failed"
