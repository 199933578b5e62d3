"""The consistency checks pass on engines that share their arithmetic and catch those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.conformance.check import NotRun
from omni_portable.conformance.checks import consistency
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from tests.conformance.evidence_doubles import DeafEngine, broken, by_name, serve, toy_context

RUN = {check.id: check.run for check in consistency.CHECKS if check.suite == "quick"}


class ShiftedActor(SingleTrainEngine):
    """Log-probs that are off by a little."""

    shift = 3e-5

    def log_probs(self, batch: TrainBatch, policy: str = "current") -> torch.Tensor:
        return super().log_probs(batch, policy) + self.shift


@pytest.mark.parametrize("name", sorted(RUN))
def test_shared_arithmetic_passes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = RUN[name](toy_context(monkeypatch, tmp_path))
    assert broken(outcome) == set()
    assert outcome.facts["dtype"] == "float32"


@pytest.mark.parametrize("name", sorted(RUN))
def test_an_actor_that_is_off_is_caught(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, "train_engine", ShiftedActor)
    wrong = broken(RUN[name](toy_context(monkeypatch, tmp_path)))
    assert wrong & {"largest_gap", "largest_gap_of_new_samples"}


def test_a_rollout_without_the_update_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, "rollout_engine", DeafEngine)
    wrong = broken(RUN["consistency.after-update"](toy_context(monkeypatch, tmp_path)))
    assert {"largest_gap_of_new_samples", "share_of_ratios_exactly_1"} <= wrong


def test_batch_shapes_up_to_the_rollouts_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = RUN["consistency.batch-shapes"](toy_context(monkeypatch, tmp_path))
    sizes = [int(name.rpartition("_")[2]) for name in by_name(outcome) if name.startswith("gap_at_batch_")]
    assert sizes == [1, 2, 4, 7]
    assert "[16, 32]" in outcome.detail


def test_a_dtype_without_a_bound_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(consistency, "GAP_BOUNDS", {})
    with pytest.raises(NotRun, match="float32"):
        RUN["consistency.batch-shapes"](toy_context(monkeypatch, tmp_path))


@pytest.mark.parametrize("name", sorted(RUN))
def test_an_algorithm_without_log_probs_is_not_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = toy_context(monkeypatch, tmp_path)
    spec = registry.spec("algorithm", "flow_grpo")
    silent = replace(spec, capabilities={**spec.capabilities, "needs_log_probs": False})
    monkeypatch.setattr(registry, "spec", lambda kind, asked: silent)
    with pytest.raises(NotRun, match="'flow_grpo' compares no log-probs"):
        RUN[name](context)
