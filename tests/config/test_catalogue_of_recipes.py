"""Entries of the catalogue are read without composing; they must say what composing says."""

from __future__ import annotations

import pytest

from omni_portable.config.catalogue import OWN, TESTED, TWIN, catalogue, merged_keys, summary
from omni_portable.config.loader import list_recipes, load_config
from omni_portable.contracts import registry

ONE_PER_FAMILY = list({name.partition("/")[0]: name for name in list_recipes()}.values())
DEEP = ["sd3/diffusion_opd_routed_tiny", "minimax_h3/flow_grpo_fl2va_last_tiny", "qwen_image/flow_grpo_ocr_jpeg_tiny"]


@pytest.mark.parametrize("name", [*ONE_PER_FAMILY, *DEEP])
def test_entries_agree_with_composed_recipes(name):
    (entry,) = [entry for entry in catalogue(family=name.partition("/")[0]) if entry.name == name]
    config = load_config(name)
    rank = config.model.lora.rank
    scorers = config.reward.scorers.values()
    assert (entry.family, entry.algorithm) == (config.model.family, config.algorithm["name"])
    assert entry.trains == (f"LoRA {rank}" if rank else "all weights")
    assert set(entry.rewards) == {section["kind"] for section in scorers if section.get("weight", 1.0)}
    assert (entry.engine, entry.device) == (config.rollout.engine, config.device.name)


def test_families_are_folders():
    assert all(entry.family == entry.name.partition("/")[0] for entry in catalogue())


def test_a_twin_has_the_settings_of_its_recipe():
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["qwen3_omni/gspo_mmk12_tiny"].source == entries["qwen3_omni/gspo_mmk12"].source != OWN
    assert entries["sd3/sft_glyphs_tiny"].source == OWN


STAND_INS = {"jpeg_compressibility", "ocr", "video_motion", "video_flicker", "audio_energy"}
"""Scorers that need no model; the published runs have reward models or judges in their places."""


@pytest.mark.parametrize("entry", [e for e in catalogue(size="full") if e.source != OWN], ids=lambda e: e.name)
def test_another_reward_than_the_source_s_is_said(entry):
    if STAND_INS & set(entry.rewards):
        assert any("reward" in text or "scores" in text for text in entry.differs)
    assert "recipe)" not in entry.summary, "settings of a recipe with another reward are not that recipe"


def test_what_differs_is_read_from_all_that_is_extended():
    entries = {entry.name: entry for entry in catalogue()}
    own, shared = entries["wan22/dance_grpo_t2v"].differs
    assert "9 frames" in own
    assert "HPSv3" in shared
    assert "Qwen3-VL" in entries["qwen_image/grpo_guard_ocr"].differs[0]
    assert entries["qwen_image/grpo_guard_ocr_tiny"].differs == ("model, sizes, data and rewards are tiny ones",)
    assert entries["wan22/diffusion_nft_t2v"].differs == ()  # its settings are ours


def test_a_full_size_recipe_is_not_called_tested():
    for entry in catalogue():
        assert (entry.status == TESTED) == (entry.size == "tiny")
        assert (entry.status == TWIN) == bool(entry.twin)


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.endswith("_tiny")])
def test_reports_of_tiny_video_recipes_have_something_to_show(name):
    """Two held-out prompts, before and after, so that there is a video to play and what it was given to see."""
    artifacts = registry.spec("model", name.partition("/")[0]).capabilities.get("artifacts", {})
    if "video" not in artifacts.values():
        return
    config = load_config(name)
    assert config.data.validation
    assert (config.data.max_validation_prompts, config.trainer.validate_before) == (2, True)
    assert {one.field for one in config.data.media.values()} <= {"img_win", "img_lose"}
    assert config.validation.num_steps in (0, config.rollout.num_steps)


def test_extended_recipes_and_sentences(tmp_path):
    (tmp_path / "_part.yaml").write_text("a: {b: 1, c: 2}\nd: 3\n")
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        "# Dr. GRPO on Wan2.2 in two\n# lines. A second sentence.\n# Source: nobody\n# Differs: all\n"
        "defaults: [_part]\na: {c: 5}\n"
    )
    assert merged_keys(recipe) == {"a": {"b": 1, "c": 5}, "d": 3}
    assert summary(recipe) == "Dr. GRPO on Wan2.2 in two lines."
    recipe.write_text("# One\ndefaults: [_self_, /sd3/_cps_window@_global_]\nalgorithm: {step_kind: sde, name: x}\n")
    assert merged_keys(recipe)["algorithm"]["step_kind"] == "cps"
    assert summary(recipe) == "One."
    recipe.write_text("a: 1\n")
    assert summary(recipe) == ""
