"""Plans of runs whose roles have devices of their own."""

from __future__ import annotations

import pytest

from omni_portable.planning.plan import Plan
from omni_portable.planning.resolve import make_plan
from omni_portable.planning.text import plan_as_text

RECIPE = "sd3/flow_grpo_ocr_tiny"
ASYNC = ("launcher.name=ray", "trainer.mode=separate_async", "dataplane.max_staleness=1")


def ray(*overrides: str, devices: int | None = None, device: str = "cuda:sm90") -> Plan:
    return make_plan(RECIPE, device, overrides=[*ASYNC, *overrides], devices=devices)


def sizes(plan: Plan, role: str) -> dict[str, int]:
    return {item.name: item.bytes for one in plan.memory.roles if one.name == role for item in one.items}


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_actor_is_divided_by_its_ranks_not_by_all_devices(ranks: int) -> None:
    plan = ray("actor.engine=fsdp2", f"actor.world_size={ranks}", "rollout.replicas=4", devices=8)
    alone = ray("actor.engine=fsdp2", "actor.world_size=1")
    for name in ("weights", "optimizer", "gradients"):
        assert sizes(plan, "actor")[name] == -(-sizes(alone, "actor")[name] // ranks)
    assert plan.devices.used == ranks + 4
    assert f"sharded over {ranks} devices" in plan.devices.use
    assert [warning.about for warning in plan.warnings] == ([] if ranks == 4 else ["devices"])


def test_devices_of_actor_and_rollout_are_told_apart() -> None:
    plan = ray("actor.engine=fsdp2", "actor.world_size=4", "rollout.replicas=4")
    memory = plan.memory
    assert plan.devices.asked == plan.devices.used == 8
    for role in memory.roles:
        for phase, size in memory.by_device[role.name].items():
            assert size == role.total(phase)  # type: ignore[arg-type]
    assert memory.peak_bytes == max(max(phases.values()) for phases in memory.by_device.values())
    shown = plan_as_text(plan)
    assert "on each actor device" in shown
    assert "on each rollout device" in shown
    assert "share a device and take turns" not in shown


@pytest.mark.parametrize(
    ("overrides", "used"),
    [
        ((), 2),
        (("rollout.replicas=3",), 4),
        (("rollout.replicas=2", "launcher.options.rollout_devices=2"), 5),
        (("rollout.replicas=2", "launcher.options.rollout_devices=0.5"), 2),
        (("reward.workers=2", "launcher.options.reward_devices=1"), 4),
        (("launcher.options.trainer_devices=2",), 3),
        (
            (
                "rollout.engine=vllm_omni",
                "rollout.options.sequence_parallel_size=2",
                "launcher.options.rollout_devices=2",
                "rollout.replicas=2",
            ),
            5,
        ),
    ],
)
def test_devices_of_all_roles_are_counted(overrides: tuple[str, ...], used: int) -> None:
    assert ray(*overrides).devices.used == used


def test_too_few_devices_are_refused() -> None:
    plan = ray("rollout.replicas=3", devices=2)
    assert plan.verdict == "cannot_run"
    (reason,) = [one for one in plan.reasons if one.about == "devices"]
    assert reason.problem.startswith("the roles need 4 devices, of which 2 are there")
    assert "--devices 4" in reason.remedy


def test_rollout_on_the_trainers_device_adds_up() -> None:
    overrides = ["launcher.name=ray", "launcher.options.rollout_devices=0"]
    plan = make_plan(RECIPE, "cuda:sm90", overrides=overrides)
    assert plan.memory.by_device == {}
    assert plan.devices.used == 1
    assert plan.memory.phases == make_plan(RECIPE, "cuda:sm90").memory.phases


SHARED = (
    "launcher.name=ray",
    "launcher.options.rollout_devices=0",
    "actor.engine=fsdp2",
    "actor.world_size=8",
    "actor.micro_batch_size=8",
)


@pytest.mark.parametrize(("replicas", "waiting"), [(8, ""), (6, "2 of the actor's 8 devices wait while rollout draws")])
def test_replicas_in_turn_with_ranks_add_up_on_their_devices(replicas: int, waiting: str) -> None:
    overrides = [*SHARED, f"rollout.replicas={replicas}"]
    plan = make_plan(RECIPE, "cuda:sm90", overrides=overrides, devices=8)
    alone = make_plan(RECIPE, "cuda:sm90", overrides=["actor.micro_batch_size=8"])
    assert (plan.verdict, plan.devices.used) == ("runs", 8)
    assert f"{replicas} rollout replicas take turns with the actor, each on the device of a rank" in plan.devices.use
    assert [warning.problem for warning in plan.warnings] == ([waiting] if waiting else [])
    assert plan.memory.by_device == {}
    actor, rollout = plan.memory.roles
    assert sizes(plan, "rollout") == sizes(alone, "rollout"), "every device has a whole replica"
    assert sizes(plan, "actor")["optimizer"] == -(-sizes(alone, "actor")["optimizer"] // 8)
    for phase, size in plan.memory.phases.items():
        assert size == actor.total(phase) + rollout.total(phase)  # type: ignore[arg-type]


def test_what_sleeps_by_turns_leaves_the_others_phases() -> None:
    shared = [*SHARED, "rollout.replicas=8"]
    awake = make_plan(RECIPE, "cuda:sm90", overrides=shared).memory
    overrides = [*shared, "trainer.actor_sleeps=[weights,optimizer]", "rollout.sleep_level=1"]
    asleep = make_plan(RECIPE, "cuda:sm90", overrides=overrides).memory
    actor, rollout = awake.roles
    held = {item.name: item.bytes for item in actor.items if "rollout" in item.phases}
    assert {"weights", "masters", "optimizer"} <= held.keys()
    assert awake.phases["rollout"] - asleep.phases["rollout"] == sum(held.values())
    transformer = next(item.bytes for item in rollout.items if item.name == "weights")
    assert awake.phases["training"] - asleep.phases["training"] == transformer
    assert awake.phases["weight_sync"] == asleep.phases["weight_sync"], "both are awake"
    assert next(item.bytes for item in asleep.host if item.name == "sleeping actor") == sum(held.values())


def test_sleep_of_the_actor_is_proposed_where_rollout_does_not_fit() -> None:
    overrides = [*SHARED, "rollout.replicas=8", "rollout.sleep_level=1", "rollout.max_num_seqs=256"]
    overrides += ["actor.micro_batch_size=1"]
    plan = make_plan(RECIPE, "cuda:sm90", overrides=overrides)
    assert plan.memory.peak_phase == "rollout"
    tight = plan.memory.reserved_bytes + (plan.memory.peak_bytes or 0) - 1
    changes = make_plan(RECIPE, "cuda:sm90", overrides=overrides, memory_bytes=tight).memory.changes
    assert [change.fits for change in changes if change.overrides == ("trainer.actor_sleeps=[weights,optimizer]",)] == [
        True
    ]


def test_taking_turns_on_devices_of_their_own_is_warned_of() -> None:
    plan = make_plan(RECIPE, "cuda:sm90", overrides=["launcher.name=ray", *SHARED[2:], "rollout.replicas=8"])
    assert plan.devices.used == 16
    (warning,) = plan.warnings
    assert "under trainer.mode=sync rollout and actor take turns" in warning.problem
    assert "rollout_devices=0" in warning.remedy


def test_ranks_of_the_local_launcher_have_a_device_each() -> None:
    overrides = [*SHARED[2:], "actor.world_size=4"]
    plan = make_plan(RECIPE, "cuda:sm90", overrides=overrides)
    assert plan.devices.used == plan.devices.asked == 4
    assert sizes(plan, "actor")["optimizer"] == -(-sizes(make_plan(RECIPE, "cuda:sm90"), "actor")["optimizer"] // 4)
    (warning,) = plan.warnings
    assert warning.problem == "3 of the actor's 4 devices wait while rollout draws"
    assert "rollout_devices=0 rollout.replicas=4" in warning.remedy
    assert make_plan(RECIPE, "cuda:sm90", overrides=overrides, devices=1).verdict == "cannot_run"
    assert make_plan(RECIPE, "cpu", overrides=overrides).devices.used == 1


def test_processes_on_a_cpu_share_it() -> None:
    assert ray("rollout.replicas=2", device="cpu", devices=1).memory.by_device == {}
