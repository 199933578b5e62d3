"""The keys that a recommended placement is made with."""

from __future__ import annotations

from pathlib import Path

from omni_portable.config.loader import load_config, plan_text
from omni_portable.planning.placement.advise import Request, advise
from omni_portable.planning.placement.keys import keys_in_words, keys_of
from omni_portable.planning.placement.profile import Placement, load_profile
from omni_portable.planning.placement.text import advice_as_text
from omni_portable.planning.resolve import make_plan

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "placement_minicpm_o.json"


def test_the_keys_are_a_run_on_just_those_devices() -> None:
    keys = keys_of(Placement("separate_async", 8, 4, 1, 16, 1))
    config = load_config("sd3/flow_grpo_ocr_tiny", ["device.name=cpu", *keys])
    assert (config.actor.world_size, config.rollout.replicas, config.dataplane.max_staleness) == (4, 4, 1)
    assert make_plan("sd3/flow_grpo_ocr_tiny", "cuda:sm90", overrides=keys).devices.used == 8


def test_what_no_launcher_places_has_no_keys_and_says_so() -> None:
    assert keys_of(Placement("sync", 4, 4, tensor_parallel=2)) == ()
    assert "has the device of one rank, and these take 2 each" in keys_in_words(Placement("sync", 4, 4, 2))[0]


def test_taking_turns_is_a_run_on_just_those_devices() -> None:
    keys = keys_of(Placement("sync", 8, 8, 1, 16))
    config = load_config("sd3/flow_grpo_ocr_tiny", ["device.name=cpu", *keys])
    assert (config.actor.world_size, config.rollout.replicas) == (8, 8)
    assert "mode sync: 8 rollout replicas and the actor take turns on the devices of its 8 ranks" in plan_text(config)
    plan = make_plan("sd3/flow_grpo_ocr_tiny", "cuda:sm90", overrides=keys)
    assert (plan.devices.used, plan.warnings) == (8, ())
    assert keys_in_words(Placement("sync", 8, 8))[0].endswith("rollout.replicas=8 launcher.options.rollout_devices=0")
    assert keys_of(Placement("sync", 1, 1)) == ("trainer.mode=sync", "launcher.name=local")


def test_every_recommendation_shows_keys() -> None:
    shown = advice_as_text(advise(load_profile(PUBLISHED), Request(4)))
    assert shown.count("keys: trainer.mode=separate_async launcher.name=ray") == 3
    assert "dataplane.max_staleness=1 is assumed" in shown
