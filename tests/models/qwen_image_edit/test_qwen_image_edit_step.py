"""One step of real training on a tiny Qwen-Image-Edit: images in, rollout, reward, update, weight sync."""

from __future__ import annotations

from omni_portable.contracts.rollout import Extent
from tests.support.engine_step import assert_moved, engine_step
from tests.support.families import train_once

OPTIONS = {"vae_pixels": 1024, "condition_pixels": 4096}


def test_a_step_of_flow_grpo_starts_at_a_ratio_of_exactly_one(tmp_path):
    metrics = train_once("qwen_image_edit/flow_grpo_edit_tiny", tmp_path / "run")
    assert metrics["actor/ratio_max_dev"] == 0.0
    assert metrics["rollout_corr/logprob_abs_diff/max"] == 0.0
    assert metrics["actor/grad_norm"] > 0.0


def test_a_step_of_diffusion_nft(edit_folders, picture):
    media = {"image": picture()}
    extent = Extent(16, 24)
    step = engine_step("qwen_image_edit", edit_folders["2511"], extent, "diffusion_nft", options=OPTIONS, media=media)
    assert_moved(step)
