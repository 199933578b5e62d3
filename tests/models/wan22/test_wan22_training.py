"""One RL step of Wan 2.2 with stored transitions and with noised samples, through the engines."""

from __future__ import annotations

import pytest

from tests.models.wan22.conftest import SIZE, TOKENS
from tests.support.engine_step import assert_moved, assert_ratio_is_one, engine_step

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


def test_dance_grpo_from_a_first_frame(wan_folders, frames):
    step = engine_step(
        "wan22",
        wan_folders["i2v"],
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
