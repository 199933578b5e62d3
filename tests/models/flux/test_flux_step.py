"""One step of real training on a tiny FLUX: rollout, reward, update, weight sync."""

from __future__ import annotations

from omni_portable.contracts.rollout import Extent
from tests.support.engine_step import assert_moved, engine_step
from tests.support.families import train_once


def test_a_step_of_flow_grpo_with_lora_and_guidance(tmp_path):
    metrics = train_once("flux/flow_grpo_t2i_tiny", tmp_path / "run", "rollout.guidance_scale=3")
    assert metrics["actor/ratio_max_dev"] == 0.0
    assert metrics["actor/grad_norm"] > 0.0


def test_a_step_of_diffusion_nft(flux_folders):
    assert_moved(engine_step("flux", flux_folders["dev"], Extent(16, 24), "diffusion_nft"))
