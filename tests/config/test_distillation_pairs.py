"""What an algorithm that trains a fake score network asks of model, engines and teachers."""

from __future__ import annotations

import pytest

from omni_portable.config.loader import load_config
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ConfigError

RECIPE = "sd3/dmd2_glyphs_tiny"


def fails(*overrides: str, recipe: str = RECIPE, error: type[ConfigError] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize("recipe", [RECIPE, "qwen_image/dmd2_t2i", "qwen_image/dmd2_t2i_tiny"])
def test_recipes_are_right(recipe: str):
    config = load_config(recipe)
    assert config.algorithm["name"] == "dmd2"
    assert len(config.algorithm["sigmas"]) == config.rollout.num_steps


def test_a_teacher_is_needed():
    assert "model.teachers is empty" in fails("model.teachers={}", error=CapabilityError)


def test_models_that_write_tokens_are_refused():
    said = fails("algorithm={name: dmd2}", "model.teachers={t: {path: 'tiny:qwen3'}}", recipe="qwen3/grpo_letters_tiny")
    assert "dmd2 trains diffusion models" in said


def test_samples_of_a_dataset_are_refused():
    targets = "data.targets={image: {fields: [img_win]}}"
    said = fails("rollout.engine=dataset", "data.train=builtin:glyph-pairs", targets, error=CapabilityError)
    assert "rollout.engine=dataset" in said
    assert "set rollout.engine=native" in said


def test_a_guided_teacher_reads_the_negative_prompt():
    assert load_config(RECIPE, ["rollout.negative_prompt=grey"]).rollout.negative_prompt == "grey"
    said = fails("rollout.negative_prompt=grey", "algorithm.teacher_guidance_scale=1")
    assert "rollout.negative_prompt is set" in said


@pytest.mark.parametrize(
    ("kind", "name", "capability", "message"),
    [
        ("train_engine", "single", "fake_score", "actor.engine=single cannot"),
        ("model", "sd3", "guidance", "model family 'sd3' has no classifier-free guidance"),
    ],
)
def test_parts_that_cannot_serve_it_are_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, name: str, capability: str, message: str
):
    monkeypatch.setitem(registry.spec(kind, name).capabilities, capability, False)
    assert message in fails(error=CapabilityError)


@pytest.mark.parametrize("override", ["rollout.num_steps=3", "algorithm.steps_per_sample=3"])
def test_steps_that_do_not_fit_are_refused(override: str):
    assert "does not fit rollout.num_steps" in fails(override)


def test_steps_of_validation_that_do_not_fit_are_refused_before_training():
    assert "does not fit validation.num_steps=8" in fails("validation.num_steps=8")
    assert load_config(RECIPE, ["validation.num_steps=8", "data.validation="]).validation.num_steps == 8
