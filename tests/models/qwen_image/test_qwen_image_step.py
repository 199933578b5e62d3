"""One step of real training on a tiny Qwen-Image: rollout, reward, update, weight sync."""

from __future__ import annotations

from tests.support.families import train_once


def test_a_step_of_flow_grpo_starts_at_a_ratio_of_exactly_one(tmp_path):
    metrics = train_once("qwen_image/flow_grpo_ocr_tiny", tmp_path / "run")
    assert metrics["actor/ratio_max_dev"] == 0.0
    assert metrics["rollout_corr/logprob_abs_diff/max"] == 0.0
    assert metrics["actor/grad_norm"] > 0.0


def test_a_step_of_diffusion_nft(tmp_path):
    metrics = train_once("qwen_image/diffusion_nft_ocr_tiny", tmp_path / "run")
    assert metrics["actor/grad_norm"] > 0.0
    assert metrics["reward/std"] > 0.0
