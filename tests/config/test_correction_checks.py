"""Settings of the rollout correction that mean nothing, or would train nothing."""

from __future__ import annotations

import math

import pytest

from omni_portable.config.correction import STATISTICS, effective, parse_bounds
from omni_portable.config.loader import load_config
from omni_portable.contracts.errors import CapabilityError, ConfigError

SD3 = "sd3/flow_grpo_ocr_tiny"


def fails(*settings: str, recipe: str = SD3, error: type[ConfigError] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        load_config(recipe, [f"rollout_correction.{setting}" for setting in settings])
    return str(caught.value)


def test_documented_examples_work():
    reject = "rollout_correction.reject={mean_k3: '0.01', mean_k1: '0.5_2'}"
    config = load_config(SD3, ["rollout_correction.mode=bypass", reject])
    assert config.rollout_correction.reject == {"mean_k3": "0.01", "mean_k1": "0.5_2"}
    weights = ["mode=decoupled", "importance=step", "lower=0.5", "threshold=3", "normalize=true"]
    assert load_config(SD3, [f"rollout_correction.{one}" for one in weights]).rollout_correction.lower == 0.5


def test_bounds_without_quotes_are_refused_rather_than_read_as_another_number():
    assert "in quotes" in fails("mode=bypass", "reject={mean_k1: 0.5_2}")


def test_bounds_are_those_of_the_ratio():
    assert parse_bounds("mean_k1", "0.5_2") == pytest.approx((-math.log(2), math.log(2)))
    assert parse_bounds("sum_k1", "4") == pytest.approx((-math.log(4), math.log(4)))
    assert parse_bounds("max_k3", "0") == (-math.inf, 0.0)
    for statistic in STATISTICS:
        low, high = parse_bounds(statistic, "1.5")
        assert low <= 0.0 < high


@pytest.mark.parametrize(
    "reject",
    [
        "{mean_k4: '1'}",
        "{max_k1: '2'}",
        "{k2: '1'}",
        "{mean_k1: x}",
        "{mean_k1: '-1'}",
        "{mean_k1: '2_0.5'}",
        "{mean_k1: '0.5'}",
        "{mean_k1: '1_1'}",
        "{mean_k1: '0.5_1_2'}",
        "{mean_k1: '2_3'}",
        "{mean_k1: '0.5_inf'}",
        "{mean_k1: '0_2'}",
        "{mean_k1: ''}",
        "{mean_k3: '0.1_0.2'}",
        "{mean_k3: '-0.1'}",
        "{mean_k2: nan}",
        "{mean_k2: inf}",
    ],
)
def test_statistics_and_bounds_that_mean_nothing_are_refused_before_a_run(reject: str):
    statistic = reject.strip("{").partition(":")[0]
    said = fails("mode=bypass", f"reject={reject}")
    assert "rollout_correction.reject" in said
    assert statistic in said


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (("normalize=true",), "rollout_correction.mode=auto ignores it"),
        (("threshold=3",), "rollout_correction.mode=auto ignores it"),
        (("lower=0.5",), "rollout_correction.mode=auto ignores it"),
        (("importance=step",), "rollout_correction.mode=auto ignores it"),
        (("reject={mean_k3: '1'}",), "rollout_correction.mode=auto ignores it"),
        (("mode=off", "importance=step"), "rollout_correction.mode=off ignores it"),
        (("mode=decoupled", "normalize=true"), "importance=off ignores it"),
        (("mode=decoupled", "threshold=3"), "importance=off ignores it"),
        (("mode=bypass", "lower=0.5"), "importance=off ignores it"),
        (("mode=bypass", "importance=step"), "nothing left to weigh"),
        (("mode=decoupled", "importance=step", "lower=3"), "at most 1"),
        (("mode=decoupled", "importance=step", "threshold=0.5"), "at least 1"),
        (("mode=decoupled", "importance=step", "lower=1", "threshold=1"), "would be 0"),
    ],
)
def test_settings_that_do_nothing_or_train_nothing_are_refused(settings: tuple[str, ...], part: str):
    said = fails(*settings)
    assert part in said
    assert "rollout_correction." in said


def test_algorithms_without_ratios_have_nothing_to_correct():
    said = fails("mode=bypass", recipe="sd3/diffusion_nft_ocr_tiny", error=CapabilityError)
    assert "takes no ratios to correct" in said


AHEAD = ("trainer.mode=separate_async", "dataplane.max_staleness=1")


@pytest.mark.parametrize(
    ("recipe", "settings", "found"),
    [
        (SD3, (), ("off", "off")),
        (SD3, AHEAD, ("decoupled", "step")),
        (SD3, ("trainer.mode=fully_async", AHEAD[1]), ("decoupled", "step")),
        ("sd3/diffusion_nft_ocr_tiny", AHEAD, ("off", "off")),
        (SD3, AHEAD[:1], ("off", "off")),
        (SD3, (*AHEAD, "rollout_correction.mode=off"), ("off", "off")),
        (SD3, (*AHEAD, "rollout_correction.mode=bypass"), ("bypass", "off")),
    ],
)
def test_ratios_are_against_the_actor_where_samples_may_be_older(
    recipe: str, settings: tuple[str, ...], found: tuple[str, str]
):
    decided = effective(load_config(recipe, list(settings)))
    assert (decided.mode, decided.importance) == found
