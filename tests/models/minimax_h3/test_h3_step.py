"""One step of real training on a tiny MiniMax-H3: rollout, reward, update, weight sync."""

from __future__ import annotations

import pytest

from tests.support.families import train_once


@pytest.mark.parametrize("recipe", ["flow_grpo_t2va_tiny", "flow_grpo_fl2va_tiny"])
def test_a_step_of_flow_grpo_starts_at_a_ratio_of_exactly_one(tmp_path, recipe):
    metrics = train_once(f"minimax_h3/{recipe}", tmp_path / "run")
    assert metrics["actor/ratio_max_dev"] == 0.0
    assert metrics["rollout_corr/logprob_abs_diff/max"] == 0.0
    assert metrics["actor/grad_norm"] > 0.0


@pytest.mark.parametrize("recipe", ["diffusion_nft_t2va_tiny", "diffusion_nft_fl2va_tiny"])
def test_a_step_of_diffusion_nft(tmp_path, recipe):
    metrics = train_once(f"minimax_h3/{recipe}", tmp_path / "run")
    assert metrics["actor/grad_norm"] > 0.0
    assert metrics["reward/std"] > 0.0
