"""One RL step of MiniMax-H3 with stored transitions and with noised samples, from text and from given frames."""

from __future__ import annotations

import pytest
import torch

from omni_portable.models.minimax_h3.tiny import TEXT_LAYER
from tests.models.minimax_h3.conftest import ELEMENTS, SIZE
from tests.support.engine_step import assert_moved, assert_ratio_is_one, engine_step

OPTIONS = {"text_encoder_layer": TEXT_LAYER}
CPS = {
    "step_kind": "cps",
    "noise_level": 0.8,
    "window_mode": "fixed",
    "stochastic_steps": [0, 2],
    "clip_ratio": 0.1,
}


@pytest.mark.parametrize("given", [(), ("first_frame",), ("first_frame", "last_frame")])
def test_flow_grpo(h3_folder, frames, given):
    media = {name: frames[name] for name in given}
    step = engine_step("minimax_h3", h3_folder, SIZE, "flow_grpo", options=OPTIONS, algorithm_options=CPS, media=media)
    assert step.trajectories[0].latents.shape == (2, ELEMENTS)
    assert_ratio_is_one(step)


def test_the_ratio_is_one_in_other_packs_too(h3_folder):
    """A sample is a forward of its own, so that the actor may cut its batches as it likes."""
    from dataclasses import replace

    from omni_backends.training.single.engine import SingleTrainEngine
    from omni_portable.contracts.algorithm import TrainBatch

    step = engine_step("minimax_h3", h3_folder, SIZE, "flow_grpo", options=OPTIONS, algorithm_options=CPS)
    setup = step.actor._setup
    actor = SingleTrainEngine(
        replace(setup, config=replace(setup.config, actor=replace(setup.config.actor, micro_batch_size=1)))
    )
    batch = TrainBatch(step.trajectories, torch.ones(4))
    assert torch.equal(actor.log_probs(batch), torch.stack([t.log_probs for t in step.trajectories]))


def test_diffusion_nft_from_a_first_frame(h3_folder, frames):
    step = engine_step(
        "minimax_h3",
        h3_folder,
        SIZE,
        "diffusion_nft",
        options=OPTIONS | {"keyframes": "first"},
        algorithm_options={"mix_beta": 0.1, "reference_kl_coef": 1e-4},
        media={"first_frame": frames["first_frame"]},
    )
    assert_moved(step)


def test_omni_nft(h3_folder):
    step = engine_step("minimax_h3", h3_folder, SIZE, "omni_nft", options=OPTIONS, lora=0)
    assert_moved(step)
    assert {"actor/policy_loss/video", "actor/policy_loss/audio"} <= set(step.result.metrics)
