"""What the plan of a run says about modes and kernels."""

from __future__ import annotations

import pytest

from omni_portable.config.loader import load_config
from omni_portable.config.plan import plan_text

IMAGES, TOKENS = "sd3/flow_grpo_ocr_tiny", "qwen3/grpo_letters_tiny"


def words(recipe: str, *overrides: str) -> str:
    return plan_text(load_config(recipe, ["device.name=cpu", *overrides]))


def test_without_staleness_nothing_overlaps_and_the_key_is_named() -> None:
    shown = words(IMAGES, "trainer.mode=separate_async", "dataplane.max_staleness=0")
    assert "dataplane.max_staleness=0" in shown
    assert "nothing overlaps" in shown
    assert "rollout runs up to" not in shown
    assert "up to 1 policy version ahead" in words(IMAGES, "trainer.mode=separate_async", "dataplane.max_staleness=1")


@pytest.mark.parametrize(("recipe", "again"), [(IMAGES, "begin again"), (TOKENS, "go on")])
def test_what_becomes_of_interrupted_requests(recipe: str, again: str) -> None:
    assert f"interrupt requests, which {again} afterwards" in words(
        recipe, "trainer.mode=fully_async", "dataplane.max_staleness=1"
    )


def test_processes_beside_the_commands_own_are_counted() -> None:
    assert "beside this process" not in words(IMAGES)
    shown = words(IMAGES, "launcher.name=ray", "rollout.replicas=2")
    assert "launcher ray, beside this process: 2 rollout replicas, 1 reward worker" in shown
    ranks = "launcher.name=ray", "actor.engine=fsdp2", "actor.world_size=2", "reward.workers=3"
    assert "beside this process: 2 ranks, 1 rollout replica, 3 reward workers" in words(IMAGES, *ranks)
    pool = "launcher.name=ray", "teacher.placement=pool", "teacher.workers=2"
    assert "1 reward worker, 4 teacher workers" in words("sd3/diffusion_opd_routed_tiny", *pool)


@pytest.mark.parametrize(("recipe", "engine"), [(IMAGES, "vllm_omni"), (TOKENS, "vllm")])
def test_exact_ratios_are_said_of_the_native_engine_only(recipe: str, engine: str) -> None:
    exact = "start at exactly 1"
    assert exact in words(recipe)
    assert exact not in words(recipe, f"rollout.engine={engine}")
