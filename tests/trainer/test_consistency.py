"""Figures on actor and rollout, and the proof of a weight sync."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.contracts.errors import ConsistencyError, WeightSyncError
from omni_portable.trainer.consistency import SyncProof, check_gap, compare_checksums, logprob_metrics


def test_equal_log_probs_have_no_gap() -> None:
    values = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    metrics = logprob_metrics(values, values.clone())
    assert metrics["rollout_corr/logprob_abs_diff/max"] == 0.0
    assert metrics["rollout_corr/ratio_exact_one"] == 1.0
    assert metrics["training/rollout_actor_probs_pearson_corr"] == 1.0


@given(shift=st.floats(-0.5, 0.5).filter(lambda x: abs(x) > 1e-3))
def test_a_constant_shift_is_the_kl_and_the_gap(shift: float) -> None:
    rollout = torch.linspace(-2, 0, 12).reshape(4, 3)
    metrics = logprob_metrics(rollout + shift, rollout)
    assert metrics["rollout_corr/kl"] == pytest.approx(-shift, abs=1e-5)
    assert metrics["rollout_corr/logprob_abs_diff/mean"] == pytest.approx(abs(shift), abs=1e-5)
    assert metrics["rollout_corr/ratio_mean"] == pytest.approx(math.exp(shift), rel=1e-4)
    assert metrics["rollout_corr/ratio_exact_one"] == 0.0
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(1.0)


def test_gaps_by_timestep() -> None:
    rollout = torch.zeros(2, 2)
    actor = torch.tensor([[0.0, 0.25], [0.0, 0.75]])
    metrics = logprob_metrics(actor, rollout, torch.tensor([[900.0, 500.0], [900.0, 500.0]]))
    assert metrics["rollout_corr/logprob_abs_diff/ts_900"] == 0.0
    assert metrics["rollout_corr/logprob_abs_diff/ts_500"] == pytest.approx(0.5)


def test_a_limit_stops_the_run() -> None:
    metrics = {"rollout_corr/logprob_abs_diff/max": 1e-3}
    check_gap(metrics, None)
    check_gap(metrics, 1e-2)
    with pytest.raises(ConsistencyError, match="max_logprob_gap"):
        check_gap(metrics, 1e-4)


def test_checksums_name_the_first_difference() -> None:
    compare_checksums({"a": "1"}, {"a": "1", "b": "2"})
    with pytest.raises(WeightSyncError, match="'b'"):
        compare_checksums({"a": "1", "b": "2"}, {"a": "1"})
    with pytest.raises(WeightSyncError, match="'a' differs"):
        compare_checksums({"a": "1"}, {"a": "2"})


@dataclass
class Policy:
    """An actor and an engine in one, whose weights and outputs can be set apart."""

    weights: str = "w0"
    served: str = "w0"
    probes: list[str] = field(default_factory=list)

    def weights_checksum(self, names: object = None) -> dict[str, str]:
        return {"weight": self.weights}

    async def generate(self, requests: list) -> SimpleNamespace:
        latents = torch.tensor([float(hash(self.served) % 1000)])
        return SimpleNamespace(trajectories=[SimpleNamespace(final_latents=latents)])


@pytest.mark.parametrize(
    ("weights", "served", "message"),
    [("w1", "w0", "did not change although the weights changed"), ("w0", "w1", "changed although the weights did not")],
)
def test_the_probe_catches_an_engine_that_serves_something_else(weights: str, served: str, message: str) -> None:
    policy = Policy()
    proof = SyncProof(policy, policy, probe=object())  # type: ignore[arg-type]
    asyncio.run(proof.check())
    asyncio.run(proof.check())
    policy.weights, policy.served = weights, served
    with pytest.raises(WeightSyncError, match=message):
        asyncio.run(proof.check())


def test_the_probe_accepts_a_real_change() -> None:
    policy = Policy()
    proof = SyncProof(policy, policy, probe=object())  # type: ignore[arg-type]
    asyncio.run(proof.check())
    policy.weights = policy.served = "w1"
    asyncio.run(proof.check())
