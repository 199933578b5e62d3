"""Weights and rejections for rollouts whose log-probs differ from the actor's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.algorithms.rollout_correction import correct, within_bounds
from omni_portable.config.correction import STATISTICS
from omni_portable.config.schema import RolloutCorrectionConfig

ROLLOUT = torch.tensor([[-1.0, -2.0], [-1.5, -0.5], [-1.0, -1.0]])
ACTOR = ROLLOUT + torch.tensor([[0.0, 0.0], [0.5, 0.5], [-3.0, 1.0]])


def test_equal_log_probs_need_no_correction():
    reject = dict.fromkeys(STATISTICS, "1.0001") | {"mean_k3": "0", "max_k2": "0"}
    found = correct(ROLLOUT, ROLLOUT, RolloutCorrectionConfig("decoupled", "step", reject=reject))
    assert torch.equal(found.weights, torch.ones(3, 2))
    assert found.kept.all()
    assert found.metrics["rollout_corr/rollout_is_eff_sample_size"] == 1.0


def test_step_weights_are_truncated_ratios():
    found = correct(ACTOR, ROLLOUT, RolloutCorrectionConfig("decoupled", "step", threshold=1.5))
    expected = [[1.0, 1.0], [1.5, 1.5], [math.exp(-3), 1.5]]
    torch.testing.assert_close(found.weights, torch.tensor(expected))


def test_trajectory_weights_are_products_of_the_steps():
    found = correct(ACTOR, ROLLOUT, RolloutCorrectionConfig("decoupled", "trajectory", threshold=10.0))
    expected = [[1.0, 1.0], [math.e, math.e], [math.exp(-2), math.exp(-2)]]
    torch.testing.assert_close(found.weights, torch.tensor(expected))


def test_a_lower_bound_drops_rows_instead_of_truncating_them():
    found = correct(ACTOR, ROLLOUT, RolloutCorrectionConfig("decoupled", "step", threshold=2.0, lower=0.5))
    torch.testing.assert_close(found.weights, torch.tensor([[1.0, 1.0], [math.exp(0.5), math.exp(0.5)], [0.0, 0.0]]))


@given(st.floats(1.1, 4.0), st.sampled_from(["step", "trajectory"]))
def test_normalised_weights_have_mean_one(threshold: float, level: str):
    config = RolloutCorrectionConfig("decoupled", level, threshold=threshold, normalize=True)
    assert correct(ACTOR, ROLLOUT, config).weights.mean().item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("statistic", "bounds", "kept"),
    [
        ("mean_k1", "2", [True, True, False]),
        ("mean_k1", "0.9_1.1", [True, False, False]),
        ("sum_k1", "0.1_2.7", [True, False, True]),
        ("max_k2", "1", [True, True, False]),
        ("mean_k3", "0.2", [True, True, False]),
        ("sum_k3", "0.2", [True, False, False]),
    ],
)
def test_samples_beyond_their_bounds_are_rejected(statistic, bounds, kept):
    config = RolloutCorrectionConfig("bypass", reject={statistic: bounds})
    found = correct(ACTOR, ROLLOUT, config)
    assert found.kept.tolist() == kept
    share = kept.count(False) / len(kept)
    assert found.metrics[f"rollout_corr/rejected/{statistic}"] == pytest.approx(share)


def test_k3_is_never_negative_and_zero_only_at_equality():
    q = torch.arange(-30, 31, dtype=torch.float64)[:, None] / 10
    assert within_bounds(q, "mean_k3", "0").flatten().tolist() == [bool(v == 0) for v in q.flatten()]


def test_what_stands_after_a_response_counts_nowhere():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    rollout = torch.tensor([[-1.0, -2.0, torch.nan], [-1.5, torch.nan, torch.nan]])
    actor = torch.tensor([[-1.5, -2.0, torch.nan], [-0.5, torch.nan, torch.nan]])
    for importance in ("off", "step", "trajectory"):
        config = RolloutCorrectionConfig(
            "decoupled", importance, threshold=9.0, normalize=True, reject={"mean_k1": "2", "max_k2": "9"}
        )
        found = correct(actor, rollout, config, mask)
        assert torch.equal(found.weights > 0, mask)
        assert found.kept.tolist() == [True, False]  # exp of the means: exp(-0.25) and exp(1)
        assert found.metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1.0)
        alone = correct(actor[1:, :1], rollout[1:, :1], RolloutCorrectionConfig("decoupled", importance, threshold=9.0))
        plain = correct(actor, rollout, RolloutCorrectionConfig("decoupled", importance, threshold=9.0), mask)
        torch.testing.assert_close(plain.weights[1, 0], alone.weights[0, 0])
