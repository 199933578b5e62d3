"""Versions that a rollout engine runs with, against those that a device's stack serves."""

from __future__ import annotations

import pytest

from omni_portable.planning.resolve import make_plan


@pytest.mark.parametrize(
    ("recipe", "engine"), [("qwen3/grpo_letters_tiny", "vllm"), ("sd3/flow_grpo_ocr_tiny", "vllm_omni")]
)
def test_an_engine_whose_version_the_device_does_not_serve_cannot_run(recipe: str, engine: str) -> None:
    refused = make_plan(recipe, "ascend:a3", overrides=[f"rollout.engine={engine}"])
    assert refused.verdict == "cannot_run"
    (reason,) = refused.reasons
    assert "vllm >=0.30,<0.31" in reason.problem
    assert "vllm-ascend of 'ascend:a3' serves vllm 0.27.1" in reason.problem
    assert make_plan(recipe, "ascend:a3").verdict != "cannot_run"
    assert make_plan(recipe, "cuda:sm90", overrides=[f"rollout.engine={engine}"]).verdict != "cannot_run"
