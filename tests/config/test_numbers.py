"""Every number of a configuration has bounds: what overflows is refused by name, before anything loads."""

from __future__ import annotations

import dataclasses
import math
import typing

import pytest

from omni_portable.config.convert import build
from omni_portable.config.loader import load_config
from omni_portable.config.rules import LARGEST, RANGES
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError

SD3, TEXT, DISTILLED = "sd3/flow_grpo_ocr_tiny", "qwen3/grpo_letters_tiny", "sd3/dmd2_glyphs_tiny"
NUMBERS = (int, float, float | None, list[int])


def numeric_keys(cls: type, prefix: str = "") -> list[str]:
    found = []
    for name, hint in typing.get_type_hints(cls).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found += numeric_keys(hint, f"{prefix}{name}.")
        elif hint in NUMBERS:
            found.append(prefix + name)
    return found


def test_every_numeric_key_has_both_bounds():
    for key in numeric_keys(RunConfig):
        assert math.isfinite(RANGES[key].low), key
        assert math.isfinite(RANGES[key].high), key


@pytest.mark.parametrize(
    ("recipe", "override"),
    [
        (SD3, "actor.lr=1e300"),
        (SD3, "actor.eps=1e-300"),
        (SD3, "actor.grad_clip=1e-300"),
        (SD3, "rollout.guidance_scale=1e300"),
        (SD3, "validation.guidance_scale=101"),
        (SD3, "algorithm.noise_level=1e300"),
        (SD3, "algorithm.noise_level=1e-9"),
        (SD3, "algorithm.noise_level=11"),
        (SD3, "algorithm.kl_coef=1e308"),
        (SD3, "algorithm.kl_coef=1e7"),
        (SD3, "algorithm.advantage_epsilon=1e-300"),
        (SD3, "reward.scorers.ocr.weight=1e308"),
        (SD3, "reward.scorers.ocr.weight=-1e7"),
        (SD3, "consistency.batch_shapes=[1,100000000000]"),
        (DISTILLED, "algorithm.teacher_guidance_scale=1e300"),
        (DISTILLED, "algorithm.teacher_guidance_scale=101"),
        (DISTILLED, "algorithm.fake_lr=1e300"),
        (DISTILLED, "algorithm.sigma_shift=1e5"),
        (TEXT, "rollout.temperature=1e300"),
        (TEXT, "rollout.temperature=1e-300"),
        (TEXT, "rollout.validation_temperature=1e-300"),
    ],
)
def test_numbers_that_overflow_are_refused_by_their_key(recipe: str, override: str):
    extra = ["algorithm.step_kind=dance_sde"] if "noise_level" in override else []
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, [*extra, override])
    assert override.partition("=")[0].rpartition(".")[2] in str(caught.value)


def test_a_temperature_of_0_stays_possible():
    assert load_config(TEXT, ["rollout.validation_temperature=0"]).rollout.validation_temperature == 0


def test_numbers_in_sections_without_a_table_are_bounded_too():
    media = "data.media={image: {modality: image, height: 8, width: 100000000000}}"
    with pytest.raises(ConfigError, match=r"data\.media\.image\.width.*at most 1e\+09"):
        load_config("qwen_vl/grpo_colours_tiny", [media])


@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_options_of_algorithms_stay_far_below_what_overflows(name: str):
    options = registry.spec("algorithm", name).options
    assert options is not None
    hints = typing.get_type_hints(options)
    for key, hint in hints.items():
        if hint in (int, float):
            with pytest.raises(ConfigError, match=key):
                build(options, {key: hint(LARGEST / 10)}, "algorithm")
