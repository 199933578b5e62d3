"""One RL step of LTX-2 with stored transitions and with noised samples of both streams, through the engines."""

from __future__ import annotations

import pytest

from tests.models.ltx2.conftest import SIZE, TOKENS
from tests.support.engine_step import assert_moved, assert_ratio_is_one, engine_step

OPTIONS = {"max_sequence_length": TOKENS}


@pytest.mark.parametrize("lora", [0, 4])
def test_flow_grpo(ltx_folders, lora):
    step = engine_step(
        "ltx2",
        ltx_folders["2.3"],
        SIZE,
        "flow_grpo",
        options=OPTIONS,
        algorithm_options={
            "step_kind": "cps",
            "noise_level": 0.8,
            "window_mode": "fixed",
            "stochastic_steps": [0, 2],
            "clip_ratio": 0.1,
        },
        guidance=4.0,
        lora=lora,
    )
    assert_ratio_is_one(step)
    made = step.trajectories[0].artifacts
    assert (made["video"].fps, made["audio"].sample_rate) == (24.0, 3200)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_flow_grpo_with_perturbed_forwards(ltx_folders, guidance):
    step = engine_step(
        "ltx2",
        ltx_folders["2.3"],
        SIZE,
        "flow_grpo",
        options=OPTIONS | {"stg_scale": 1.0, "stg_blocks": [1], "modality_scale": 2.0},
        algorithm_options={"noise_level": 0.5, "window_mode": "fixed", "stochastic_steps": [0, 2]},
        guidance=guidance,
    )
    assert_ratio_is_one(step)


def test_omni_nft(ltx_folders):
    step = engine_step(
        "ltx2",
        ltx_folders["2.3"],
        SIZE,
        "omni_nft",
        options=OPTIONS,
        algorithm_options={"mix_beta": 1.0, "stream_weights": {"audio": 2.0}},
    )
    assert_moved(step)
    losses = {name: step.result.metrics[f"actor/policy_loss/{name}"] for name in ("video", "audio")}
    assert min(losses.values()) > 0.0
