"""One RL step of Wan 2.2 with stored transitions and with noised samples, through the engines."""

from __future__ import annotations

import pytest
import torch

from omni_portable.models.wan22.first_frame import FRAME, GIVEN
from tests.models.wan22.conftest import SIZE, TOKENS
from tests.support.engine_step import assert_moved, assert_ratio_is_one, engine_step

PARTS = (FRAME, GIVEN)
OPTIONS = {"max_sequence_length": TOKENS}
DANCE = {"noise_level": 1.2, "window_mode": "fixed", "stochastic_steps": [0, 2, 3], "clip_ratio": 0.1}


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("variant", ["t2v", "ti2v"])
def test_dance_grpo(wan_folders, variant, lora):
    step = engine_step(
        "wan22",
        wan_folders[variant],
        SIZE,
        "dance_grpo",
        options=OPTIONS,
        algorithm_options=DANCE,
        guidance=3.0,
        lora=lora,
    )
    assert step.trajectories[0].latents.shape[0] == 3
    assert_ratio_is_one(step)
    video = step.trajectories[0].artifacts["video"]
    assert (tuple(video.data.shape), video.fps) == ((9, 3, 32, 48), 8.0)


@pytest.mark.parametrize("expert", ["high_noise", "low_noise"])
def test_one_expert_alone(wan_folders, expert):
    step = engine_step(
        "wan22",
        wan_folders["t2v"],
        SIZE,
        "dance_grpo",
        options=OPTIONS | {"trained_expert": expert},
        algorithm_options=DANCE,
    )
    assert_ratio_is_one(step)


@pytest.mark.parametrize("variant", ["i2v", "ti2v"])
def test_dance_grpo_from_a_first_frame(wan_folders, frames, variant):
    step = engine_step(
        "wan22",
        wan_folders[variant],
        SIZE,
        "dance_grpo",
        options=OPTIONS,
        algorithm_options=DANCE,
        media={"first_frame": frames["first_frame"]},
    )
    assert_ratio_is_one(step)


def test_diffusion_nft(wan_folders):
    step = engine_step(
        "wan22", wan_folders["t2v"], SIZE, "diffusion_nft", options=OPTIONS, algorithm_options={"mix_beta": 0.1}
    )
    assert_moved(step)


def test_a_given_first_frame_has_no_part_in_the_loss(wan_folders, frames):
    """Its velocity follows from what is given alone: a noised sample is denoised there without an error."""
    media = {"first_frame": frames["first_frame"]}
    step = engine_step("wan22", wan_folders["ti2v"], SIZE, "diffusion_nft", options=OPTIONS, media=media)
    assert_moved(step)
    clean = torch.stack([trajectory.final_latents for trajectory in step.trajectories])
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    sigma = torch.full((len(clean),), 0.5)
    given = {name: torch.stack([t.conditioning[name] for t in step.trajectories]) for name in ("prompt_embeds", *PARTS)}
    adapter = step.rollout._adapter
    velocity = adapter.velocity(0.5 * clean + 0.5 * noise, sigma * 1000, given, 1.0)
    torch.testing.assert_close(velocity[:, :, 0], (noise - clean)[:, :, 0], atol=1e-4, rtol=1e-4)
