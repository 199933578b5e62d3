"""Sizes that a family's model cannot draw are refused from its config files alone, in training and in validation."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from omni_portable.cli import main
from omni_portable.config.loader import load_config
from omni_portable.config.schema import RolloutConfig
from omni_portable.config.tiny import tiny_folder
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError
from omni_portable.models.extents import check_extents
from omni_portable.trainer.preflight import prepare

RECIPES = {
    "sd3": "sd3/flow_grpo_ocr_tiny",
    "flux": "flux/dance_grpo_t2i_tiny",
    "qwen_image": "qwen_image/flow_grpo_ocr_tiny",
    "qwen_image_edit": "qwen_image_edit/flow_grpo_edit_tiny",
    "wan22": "wan22/dance_grpo_t2v_tiny",
    "ltx2": "ltx2/flow_grpo_t2av_tiny",
    "minimax_h3": "minimax_h3/flow_grpo_t2va_tiny",
}
"""Family whose samples have a size -> a recipe of it."""
IMAGES = ("sd3", "flux", "qwen_image", "qwen_image_edit")


def refused(family: str) -> list[tuple[str, dict[str, object]]]:
    """What no model of the family can draw: key that is named, and the settings."""
    found: list[tuple[str, dict[str, object]]] = [("height", {"height": 37}), ("width", {"width": 41})]
    if family in IMAGES:
        return [*found, ("num_frames", {"num_frames": 9})]
    return [*found, ("num_frames", {"num_frames": 6}), ("frame_rate", {"frame_rate": 0.0})]


CASES = [(family, key, settings) for family in RECIPES for key, settings in refused(family)]


def test_every_diffusion_family_says_what_it_can_draw():
    kinds = {name: registry.spec("model", name).capabilities for name in registry.names("model")}
    drawing = {name for name, capabilities in kinds.items() if "diffusion" in capabilities.get("kinds", ())}
    assert drawing == set(RECIPES)
    assert {name for name, capabilities in kinds.items() if "check_extent" in capabilities} == drawing


@pytest.mark.parametrize(("family", "key", "settings"), CASES)
def test_sizes_are_refused_from_config_files(family, key, settings):
    config = load_config(RECIPES[family])
    tiny_folder(config.model.path.removeprefix("tiny:")) if config.model.path.startswith("tiny:") else None
    check_extents(config)
    config.rollout = replace(config.rollout, **settings)
    with pytest.raises(ConfigError, match=rf"samples of training: .*rollout\.{key}"):
        check_extents(config)


def test_validation_has_a_size_of_its_own():
    config = load_config(RECIPES["sd3"], ["data.validation=builtin:ocr-glyphs"])
    config.validation.height = 37
    with pytest.raises(ConfigError, match=r"samples of validation: validation\.height is 37"):
        check_extents(config)
    config.data.validation = ""
    check_extents(config)


def test_a_model_that_is_not_here_is_not_checked():
    config = load_config(RECIPES["sd3"], ["model.path=stabilityai/no-such-model-here"])
    config.rollout = RolloutConfig(height=37)
    check_extents(config)


def test_a_run_is_refused_before_weights_load():
    config = load_config(RECIPES["sd3"], ["rollout.height=37"])
    with pytest.raises(ConfigError, match=r"rollout\.height is 37"):
        prepare(config)


def test_a_dry_run_is_refused_without_torch(capsys):
    assert main(["train", RECIPES["sd3"], "rollout.height=37", "--dry-run"]) == 2
    assert "rollout.height is 37" in capsys.readouterr().err
    code = (
        "import sys; from omni_portable.config.loader import load_config; "
        "from omni_portable.models.extents import check_extents; "
        f"check_extents(load_config({RECIPES['sd3']!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
