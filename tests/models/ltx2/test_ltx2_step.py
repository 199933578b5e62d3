"""One step of real training on a tiny LTX-2: rollout, reward, update, weight sync."""

from __future__ import annotations

from tests.support.families import train_once


def test_a_step_of_flow_grpo_starts_at_a_ratio_of_exactly_one(tmp_path):
    metrics = train_once("ltx2/flow_grpo_t2av_tiny", tmp_path / "run")
    assert metrics["actor/ratio_max_dev"] == 0.0
    assert metrics["rollout_corr/logprob_abs_diff/max"] == 0.0
    assert metrics["actor/grad_norm"] > 0.0


def test_a_step_of_omni_nft_trains_both_streams(tmp_path):
    metrics = train_once("ltx2/omni_nft_t2av_tiny", tmp_path / "run")
    assert metrics["actor/grad_norm"] > 0.0
    assert metrics["actor/policy_loss/video"] > 0.0
    assert metrics["actor/policy_loss/audio"] > 0.0
