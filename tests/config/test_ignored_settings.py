"""Settings that nothing would read, and parts of different kinds, are refused with the reason that is true."""

from __future__ import annotations

import pytest

from omni_portable.config.loader import load_config
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ConfigError

SD3, TEXT, VIDEO = "sd3/flow_grpo_ocr_tiny", "qwen3/grpo_letters_tiny", "wan22/dance_grpo_t2v_tiny"


def fails(recipe: str, *overrides: str, error: type[ConfigError] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize("setting", ["path=/nope", "alpha=8", "dropout=0.1", "targets=[to_q]"])
def test_a_lora_without_a_rank_is_refused(setting: str):
    said = fails(SD3, "model.lora={rank: 0}", f"model.lora.{setting}")
    assert f"model.lora.{setting.partition('=')[0]}" in said
    assert "set model.lora.rank" in said


def test_imitating_the_policys_own_samples_is_refused():
    own = ("algorithm={name: sft}", "rollout.engine=native")
    said = fails(SD3, *own, error=CapabilityError)
    assert "algorithm 'sft' imitates samples" in said
    assert "rollout.engine=native" in said
    assert "set rollout.engine=dataset" in said
    assert "imitates" in fails("sd3/sft_glyphs_tiny", "rollout.engine=native", "data.targets={}")


@pytest.mark.parametrize(("recipe", "engine", "fits"), [(SD3, "vllm", "vllm_omni"), (TEXT, "vllm_omni", "vllm")])
def test_an_engine_for_another_kind_of_model_names_those_that_fit(recipe: str, engine: str, fits: str):
    said = fails(recipe, f"rollout.engine={engine}", error=CapabilityError)
    assert f"rollout.engine={engine} runs" in said
    assert "set rollout.engine to one of the choices" in said
    assert f"native, {fits}" in said


def test_preferences_of_given_samples_need_given_samples():
    said = fails(SD3, "reward.scorers={main: {kind: preference}}", error=CapabilityError)
    assert "reward.scorers.main.kind=preference" in said
    assert "set rollout.engine=dataset" in said
    assert load_config(SD3, ["reward.scorers.main={kind: preference, weight: 0}"])


@pytest.mark.parametrize(
    ("recipe", "override", "part"),
    [
        (SD3, "rollout.frame_rate=24", "draws no videos"),
        (SD3, "rollout.num_frames=9", "draws no videos"),
        (SD3, "validation.num_frames=9", "draws no videos"),
        (SD3, "rollout.temperature=0.5", "a model that denoises"),
        (SD3, "rollout.max_new_tokens=12", "a model that denoises"),
        (SD3, "rollout.stop=[a]", "a model that denoises"),
        (TEXT, "rollout.frame_rate=24", "a model that writes tokens"),
        (TEXT, "rollout.num_steps=9", "a model that writes tokens"),
        (TEXT, "rollout.height=64", "a model that writes tokens"),
        (TEXT, "rollout.negative_prompt=grey", "a model that writes tokens"),
    ],
)
def test_keys_of_another_kind_of_model_are_refused(recipe: str, override: str, part: str):
    said = fails(recipe, override)
    assert part in said
    assert override.partition("=")[0] in said


def test_a_video_has_frames_and_a_rate():
    config = load_config(VIDEO, ["rollout.frame_rate=12", "validation.num_frames=9"])
    assert config.rollout.frame_rate == 12


def test_a_run_that_records_nothing_is_refused():
    said = fails(SD3, "trainer.loggers=[]")
    assert "trainer.loggers" in said
    assert "[jsonl]" in said


@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm.name=grpo",),
        ("model.family=qwen3", "algorithm={name: flow_grpo}"),
        ("model.family=qwen3", "model.path=tiny:qwen3"),
    ],
)
def test_kinds_that_differ_come_before_what_follows_from_them(overrides: tuple[str, ...]):
    said = fails(SD3, *overrides, error=CapabilityError)
    assert "algorithm.name=" in said
    assert "model.family=" in said
    assert "unknown configuration key" not in said


def test_algorithms_that_would_fit_are_listed():
    said = fails(SD3, "algorithm.name=grpo").partition("valid choices:")[2]
    assert "flow_grpo" in said
    assert " grpo," not in said


@pytest.mark.parametrize("key", ["algorithm.name", "reward.scorers.ocr.kind"])
@pytest.mark.parametrize("value", ["[a]", "{a: 1}", "1.5"])
def test_names_must_be_texts(key: str, value: str):
    said = fails(SD3, f"{key}={value}")
    assert key in said
    assert "must be a text" in said


def test_what_needs_given_samples_is_declared():
    names = [name for name in registry.names("algorithm") if "needs_given" in str(registry.spec("algorithm", name))]
    assert names == ["sft"]
