"""Keys of the execution modes that contradict each other are refused before anything loads."""

from __future__ import annotations

import pytest

from omni_portable.config.loader import load_config, plan_text
from omni_portable.contracts.errors import ConfigError

ASYNC = ("trainer.mode=separate_async", "dataplane.max_staleness=1")
FULLY = ("trainer.mode=fully_async", "dataplane.max_staleness=1")
LENT = "trainer.hybrid.enabled=true"


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("dataplane.max_staleness=1",), ("trainer.mode=sync trains on fresh samples only", "max_staleness=0")),
        (("trainer.sync_interval=2",), ("trainer.sync_interval=2", "after every rollout")),
        (
            ("trainer.mode=separate_async", "trainer.sync_interval=9"),
            ("trainer.sync_interval=9", "dataplane.max_staleness=0", "max_staleness=1 or more"),
        ),
        (("trainer.mode=fully_async", "trainer.sync_interval=9"), ("only after 9 optimizer steps",)),
        ((*ASYNC, "rollout.sleep_level=1"), ("rollout.sleep_level=1", "cannot sleep")),
        ((*FULLY, "rollout.sleep_level=2"), ("rollout.sleep_level=2", "trainer.mode=sync")),
        ((*ASYNC, "rollout.replicas=0"), ("rollout.replicas=0", "at least 1")),
        ((*ASYNC, "dataplane.max_staleness=-1"), ("dataplane.max_staleness", "at least 0")),
        ((*ASYNC, "trainer.sync_interval=0"), ("trainer.sync_interval", "at least 1")),
        ((*ASYNC, "actor.mini_batch_size=7"), ("no whole number of mini-batches of 7",)),
        ((LENT,), ("trainer.hybrid.enabled", "trainer.mode=sync", "separate_async or fully_async")),
        (
            (*ASYNC, LENT, "trainer.hybrid.lend_below=0.8", "trainer.hybrid.reclaim_at=0.5"),
            ("trainer.hybrid.reclaim_at=0.5", "taken back before", "reclaim_at=0.8 or more"),
        ),
        ((*ASYNC, LENT, "trainer.hybrid.lend_below=0"), ("trainer.hybrid.lend_below=0", "above 0")),
        ((*ASYNC, LENT, "trainer.hybrid.reclaim_at=2"), ("trainer.hybrid.reclaim_at=2", "at most 1")),
        ((*ASYNC, LENT, "trainer.hybrid.sleep_level=3"), ("trainer.hybrid.sleep_level=3", "at most 2")),
        (
            (*ASYNC, LENT, "trainer.hybrid.actor_sleeps=[kv_cache]"),
            ("trainer.hybrid.actor_sleeps", "no 'kv_cache'", "weights, optimizer"),
        ),
        (("trainer.actor_sleeps=[weights,weights]",), ("trainer.actor_sleeps", "'weights' is named twice")),
        (("trainer.actor_sleeps=[gradients]",), ("trainer.actor_sleeps", "no 'gradients'", "weights, optimizer")),
        (
            (*ASYNC, "trainer.actor_sleeps=[optimizer]"),
            ("trainer.actor_sleeps", "trains while rollout draws", "trainer.hybrid.actor_sleeps"),
        ),
    ],
)
def test_what_cannot_work_is_refused_by_its_keys(recipe, overrides, parts):
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    for part in parts:
        assert part in str(caught.value)


def test_a_level_of_sleep_that_the_engine_does_not_declare_is_refused():
    with pytest.raises(ConfigError, match="rollout.engine=vllm_omni does not sleep so") as caught:
        load_config("sd3/flow_grpo_ocr_tiny", ["device.name=cpu", "rollout.engine=vllm_omni", "rollout.sleep_level=2"])
    assert "valid choices: 0, 1" in str(caught.value)


def test_an_engine_that_cannot_sleep_on_a_processor_is_not_asked_to():
    asked = ["rollout.engine=vllm", "rollout.sleep_level=1"]
    with pytest.raises(ConfigError, match="on a processor rollout.engine=vllm cannot sleep"):
        load_config("qwen3/grpo_letters_tiny", ["device.name=cpu", *asked])
    assert load_config("qwen3/grpo_letters_tiny", ["device.name=cuda", *asked]).rollout.sleep_level == 1


@pytest.mark.parametrize(
    ("override", "chosen", "owner"),
    [
        ("launcher.options.rollout_devices=0", "launcher.name=local", "launcher.name=ray"),
        ("dataplane.options.objects_from_kib=3", "dataplane.name=local", "dataplane.name=transferqueue"),
        ("rollout.options.tensor_parallel_size=2", "rollout.engine=native", "rollout.engine=vllm"),
    ],
)
def test_an_option_of_another_plugin_is_refused_with_the_key_that_chooses_that(override, chosen, owner):
    with pytest.raises(ConfigError) as caught:
        load_config("sd3/flow_grpo_ocr_tiny", ["device.name=cpu", override])
    for part in (override, f"{chosen} has no such option", f"set {owner}"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ((), ""),
        (ASYNC, "rollout runs up to 1 policy version ahead of training"),
        (FULLY, "new weights interrupt requests"),
        ((*FULLY, LENT), "the actor's devices are lent to rollout while less than 100 % of a step's samples is ready"),
    ],
)
def test_the_plan_says_how_rollout_and_training_share_time(recipe, overrides, line):
    text = plan_text(load_config(recipe, overrides))
    assert line in text
    assert ("mode " in text) == bool(overrides)
