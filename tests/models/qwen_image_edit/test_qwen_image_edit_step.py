"""One step of real training on a tiny Qwen-Image-Edit: images in, rollout, reward, update, weight sync."""

from __future__ import annotations

from omni_portable.contracts.rollout import Extent
from tests.support.engine_step import assert_moved, engine_step

OPTIONS = {"vae_pixels": 1024, "condition_pixels": 4096}


def test_a_step_of_diffusion_nft(edit_folders, picture):
    media = {"image": picture()}
    extent = Extent(16, 24)
    step = engine_step("qwen_image_edit", edit_folders["2511"], extent, "diffusion_nft", options=OPTIONS, media=media)
    assert_moved(step)
