"""The keys that a recommended placement is made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.config.loader import load_config, plan_text
from omni_portable.contracts import registry
from omni_portable.planning.placement.advise import Request, advise
from omni_portable.planning.placement.keys import keys_in_words, keys_of
from omni_portable.planning.placement.profile import Placement, Profile, Row, load_profile
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


@pytest.mark.parametrize(
    ("tokens", "recipe", "size"),
    [
        (True, "qwen3/grpo_letters_tiny", "tensor_parallel_size"),
        (False, "sd3/flow_grpo_ocr_tiny", "sequence_parallel_size"),
    ],
)
def test_replicas_of_several_devices_take_the_engine_that_has_them(tokens: bool, recipe: str, size: str) -> None:
    placement = Placement("separate_async", 3, 2, tensor_parallel=2, max_staleness=1)
    keys = keys_of(placement, tokens)
    assert f"rollout.options.{size}=2" in keys
    assert load_config(recipe, ["device.name=cpu", *keys]).rollout.replicas == 1
    assert "must serve the model" in " ".join(keys_in_words(placement, tokens))


def test_where_no_engine_works_on_several_devices_there_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda kind: ["native"])
    placement = Placement("separate_async", 3, 2, tensor_parallel=2, max_staleness=1)
    assert keys_of(placement) == ()
    assert keys_in_words(placement) == ("keys: none. No rollout engine here draws such samples on 2 devices",)


def test_samples_without_tokens_are_not_said_to_have_costs_per_token() -> None:
    row = Row(Placement("sync", 2, 2, prompts=8), 0.0, rollout_s=4.0, train_s=6.0, reward_s=1.0, sync_s=0.5)
    shown = advice_as_text(advise(Profile("run", (row,), samples_per_prompt=8), Request(2, tensor_parallel=(1, 2))))
    assert "per token" not in shown
    assert "from 1 measurement, " in shown
    assert "in turn on all devices: rollout 0.500 s, training 0.750 s, reward 0.125 s, new weights 0.062 s" in shown


def test_taking_turns_is_a_run_on_just_those_devices() -> None:
    keys = keys_of(Placement("sync", 8, 8, 1, 16))
    config = load_config("sd3/flow_grpo_ocr_tiny", ["device.name=cpu", *keys])
    assert (config.actor.world_size, config.rollout.replicas) == (8, 8)
    assert "mode sync: 8 rollout replicas and the actor take turns on the devices of its 8 ranks" in plan_text(config)
    plan = make_plan("sd3/flow_grpo_ocr_tiny", "cuda:sm90", overrides=keys)
    assert (plan.devices.used, plan.warnings) == (8, ())
    assert keys_in_words(Placement("sync", 8, 8))[0].endswith("rollout.replicas=8 launcher.options.rollout_devices=0")


def test_every_recommendation_shows_keys() -> None:
    shown = advice_as_text(advise(load_profile(PUBLISHED), Request(4)))
    assert shown.count("keys: trainer.mode=separate_async launcher.name=ray") == 3
    assert "dataplane.max_staleness=1 is assumed" in shown


MEASURED = {
    "by turns": [
        *("launcher.name=ray", "actor.engine=fsdp2", "actor.world_size=2", "rollout.replicas=2"),
        *("launcher.options.rollout_devices=0", "rollout.sleep_level=1", "trainer.actor_sleeps=[weights,optimizer]"),
    ],
    "lent": [
        *("launcher.name=ray", "trainer.mode=separate_async", "dataplane.max_staleness=2", "trainer.sync_interval=2"),
        *("trainer.hybrid.enabled=true", "rollout.replicas=3"),
    ],
}


@pytest.mark.parametrize("measured", MEASURED.values(), ids=MEASURED)
@pytest.mark.parametrize(
    "placement",
    [
        Placement("separate_async", 4, 3, max_staleness=1),
        Placement("fully_async", 4, 2, max_staleness=1),
        Placement("sync", 4, 4),
        Placement("sync", 1, 1),
    ],
    ids=lambda placement: f"{placement.mode}-{placement.split}",
)
def test_the_keys_may_be_added_to_those_of_the_run_that_was_measured(measured: list[str], placement: Placement) -> None:
    small = ["device.name=cpu", "actor.micro_batch_size=8", "rollout.max_num_seqs=8"]
    config = load_config("sd3/flow_grpo_ocr_tiny", [*small, *measured, *keys_of(placement)])
    assert (config.trainer.mode, config.actor.world_size) == (placement.mode, placement.train_devices)
    assert config.rollout.replicas == placement.replicas
    said = " ".join(keys_in_words(placement))
    assert all(key in said for key in keys_of(placement))


def test_what_is_recommended_is_in_the_table() -> None:
    """Also where many splits are as fast, because rewards hold all of them up; and it says what would help."""
    row = Row(Placement("sync", 4, 4, prompts=4), 0.0, rollout_s=0.2, train_s=0.2, reward_s=4.0)
    advice = advise(Profile("run", (row,), samples_per_prompt=4), Request(64))
    (choice,) = advice.choices
    assert choice.options.index(choice.recommended) > 40
    shown = advice_as_text(advice)
    assert "\n* separate_async 16+48 (48xTP1)" in shown
    assert f"... and {len(choice.options) - 10} slower splits" in shown, "4 + 4 + 1 are the first of their modes"
    assert "more workers (reward.workers)" in shown
