"""Where teachers may live: what a pool is refused for, before anything loads."""

from __future__ import annotations

import pytest

from omni_portable.config.loader import load_config
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.teacher import POOL

PLACED = "teacher.placement=pool"


def fails(recipe: str, *overrides: str, error: type[ConfigError] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        load_config(recipe, (PLACED, *overrides))
    return str(caught.value)


@pytest.mark.parametrize("recipe", ["sd3/diffusion_opd_routed_tiny", "qwen_vl/token_opd_colours_tiny"])
def test_distillation_on_what_rollout_stored_may_have_a_pool(recipe: str) -> None:
    assert load_config(recipe, (PLACED,)).teacher.placement == "pool"
    assert load_config(recipe).teacher.placement == "engine"


def test_a_teacher_of_samples_that_the_update_makes_stays_in_the_engine() -> None:
    said = fails("sd3/dmd2_glyphs_tiny", error=CapabilityError)
    assert "samples that every update noises anew" in said
    assert "set teacher.placement=engine" in said


def test_there_must_be_a_teacher_to_place() -> None:
    assert "distils from no teacher" in fails("sd3/flow_grpo_ocr_tiny")


def test_an_engine_without_a_teacher_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = registry.spec("train_engine", "single")
    assert POOL in spec.capabilities
    monkeypatch.setitem(spec.capabilities, POOL, "")  # type: ignore[arg-type]
    assert "actor.engine=single names no teacher" in fails("sd3/diffusion_opd_routed_tiny", error=CapabilityError)


@pytest.mark.parametrize(
    "override", ["teacher.placement=cloud", "teacher.on_error=zero", "teacher.workers=0", "teacher.timeout_s=0"]
)
def test_values_are_checked(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=key):
        load_config("sd3/diffusion_opd_routed_tiny", (override,))
