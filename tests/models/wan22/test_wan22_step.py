"""One step of real training on tiny Wan 2.2 models: rollout, reward, update, weight sync."""

from __future__ import annotations

import pytest

from tests.support.families import train_once


@pytest.mark.parametrize("recipe", ["dance_grpo_t2v_tiny", "dance_grpo_t2v_experts_tiny", "dance_grpo_i2v_tiny"])
def test_a_step_of_dance_grpo_starts_at_a_ratio_of_exactly_one(tmp_path, recipe):
    metrics = train_once(f"wan22/{recipe}", tmp_path / "run")
    assert metrics["actor/ratio_max_dev"] == 0.0
    assert metrics["rollout_corr/logprob_abs_diff/max"] == 0.0
    assert metrics["actor/grad_norm"] > 0.0


def test_a_step_of_diffusion_nft(tmp_path):
    metrics = train_once("wan22/diffusion_nft_t2v_tiny", tmp_path / "run")
    assert metrics["actor/grad_norm"] > 0.0
    assert metrics["reward/std"] > 0.0
