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

from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import ConsistencyError, WeightSyncError
from omni_portable.trainer.consistency import SyncProof, check_gap, compare_checksums, logprob_metrics, probe_limit


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
    """An actor and an engine in one, whose weights and outputs can be set apart.

    Args:
        weights / served: what the actor holds, and what the engine's output comes from.
        log_prob: the actor's log-prob of the probe's transitions.
        recorded: transitions that the probe records.
        deterministic: whether the last of them has no log-prob.
        drawn_log_prob: what the engine recorded.
    """

    weights: str = "w0"
    served: str = "w0"
    log_prob: float = -1.0
    recorded: int = 2
    deterministic: bool = False
    drawn_log_prob: float = 0.0
    asked: list[str] = field(default_factory=list)

    def weights_checksum(self, names: object = None) -> dict[str, str]:
        return {"weight": self.weights}

    def log_probs(self, batch: TrainBatch, policy: str = "current") -> torch.Tensor:
        self.asked.append(policy)
        return torch.full((1, self.recorded), self.log_prob, dtype=torch.float64)

    async def generate(self, requests: list) -> SimpleNamespace:
        latents = torch.tensor([float(int(self.served[1:]))])
        steps = torch.arange(self.recorded)
        log_probs = torch.full((self.recorded,), self.drawn_log_prob)
        log_probs[self.recorded - self.deterministic :] = torch.nan
        drawn = SimpleNamespace(final_latents=latents, step_indices=steps, log_probs=log_probs, engine="other")
        return SimpleNamespace(trajectories=[drawn])


def make_proof(policy: Policy) -> SyncProof:
    proof = SyncProof(policy, policy, probe=object())  # type: ignore[arg-type]
    asyncio.run(proof.check())
    asyncio.run(proof.check())
    return proof


def test_the_probe_accepts_a_real_change() -> None:
    policy = Policy()
    proof = make_proof(policy)
    policy.weights = policy.served = "w1"
    policy.log_prob += 0.1
    asyncio.run(proof.check())


def test_the_probe_catches_an_engine_that_serves_the_old_weights() -> None:
    policy = Policy()
    proof = make_proof(policy)
    policy.weights = "w1"
    policy.log_prob += 1e-4
    with pytest.raises(WeightSyncError, match="did not change although the weights changed.*log-probs by 1.0e-04"):
        asyncio.run(proof.check())


def test_the_probe_catches_an_engine_that_serves_something_else() -> None:
    policy = Policy()
    proof = make_proof(policy)
    policy.served = "w1"
    with pytest.raises(WeightSyncError, match="changed although the weights did not"):
        asyncio.run(proof.check())


def test_a_change_that_rounding_swallows_is_no_fault() -> None:
    policy = Policy()
    proof = make_proof(policy)
    policy.weights = "w1"
    asyncio.run(proof.check())
    policy.weights = "w0"
    asyncio.run(proof.check())


def test_swallowed_changes_add_up_until_they_must_show() -> None:
    policy = Policy()
    proof = make_proof(policy)
    for step in range(1, 4):
        policy.weights = f"w{step}"
        policy.log_prob += 0.3e-6
        asyncio.run(proof.check())
    policy.weights = "w4"
    policy.log_prob += 0.3e-6
    with pytest.raises(WeightSyncError, match="did not change"):
        asyncio.run(proof.check())


def test_a_log_prob_that_is_no_number_is_no_excuse() -> None:
    policy = Policy()
    proof = make_proof(policy)
    policy.weights, policy.log_prob = "w1", math.nan
    with pytest.raises(WeightSyncError, match="did not change"):
        asyncio.run(proof.check())


@pytest.mark.parametrize("recorded", [{"recorded": 0}, {"deterministic": True}])
def test_without_recorded_log_probs_every_change_must_show(recorded: dict) -> None:
    policy = Policy(**recorded)
    proof = make_proof(policy)
    policy.weights = "w1"
    with pytest.raises(WeightSyncError, match="did not change although the weights changed: the engine"):
        asyncio.run(proof.check())
    assert policy.asked == []


def test_the_policy_that_was_synchronised_is_the_one_that_is_scored() -> None:
    policy = Policy()
    asyncio.run(SyncProof(policy, policy, probe=object()).check("ema"))  # type: ignore[arg-type]
    assert policy.asked == ["ema"]


def test_an_engine_that_computes_something_else_with_the_right_weights_is_caught() -> None:
    """As vLLM's CPU kernels do with experts that were not packed again."""
    policy = Policy(drawn_log_prob=-1.0)
    proof = SyncProof(policy, policy, probe=object(), limit=1e-3)  # type: ignore[arg-type]
    asyncio.run(proof.check())
    assert proof.probe_gap == 0.0
    policy.weights = policy.served = "w1"
    policy.log_prob = -1.02
    with pytest.raises(WeightSyncError, match="engine 'other' and actor .* 2.0e-02 apart .at most 1.0e-03"):
        asyncio.run(proof.check())
    policy.log_prob = math.nan
    with pytest.raises(WeightSyncError, match="nan apart"):
        asyncio.run(proof.check())


@pytest.mark.parametrize("probe", [{"recorded": 0}, {"deterministic": True}])
def test_a_probe_without_log_probs_is_not_compared_with_a_score(probe: dict) -> None:
    policy = Policy(drawn_log_prob=-1.0, log_prob=-3.0, **probe)
    proof = SyncProof(policy, policy, probe=object(), limit=1e-3)  # type: ignore[arg-type]
    asyncio.run(proof.check())
    assert math.isnan(proof.probe_gap)


@pytest.mark.parametrize(
    ("dtype", "recipe", "limit"),
    [
        ("float32", None, 1e-3),
        ("float32", 1e-6, 1e-3),
        ("float32", 0.5, 0.5),
        ("bfloat16", None, None),
        ("bfloat16", 0.2, 0.2),
    ],
)
def test_rounding_is_known_for_fp32_alone(dtype: str, recipe: float | None, limit: float | None) -> None:
    assert probe_limit(dtype, recipe) == limit
