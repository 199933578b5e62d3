"""The memory estimate: items against the real engines, sums, and what is proposed where it does not fit."""

from __future__ import annotations

import pytest
import torch

from omni_portable.config.loader import load_config
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Requires
from omni_portable.models.setup import EngineSetup
from omni_portable.planning.plan import PHASES
from omni_portable.trainer.preflight import prepare
from tests.planning.plan_fakes import GIB, RECIPE

MIB = 2**20


def items(plan, role):
    (found,) = [one for one in plan.memory.roles if one.name == role]
    return {item.name: item for item in found.items}


def sizes(plan, role):
    return {name: item.bytes for name, item in items(plan, role).items()}


def held(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("device.dtype=bfloat16",),
        ("model.lora.rank=4",),
        ("model.lora.rank=4", "device.dtype=bfloat16", "actor.ema_decay=0.9"),
        ("actor.ema_decay=0.9", "device.dtype=bfloat16", "algorithm.kl_coef=0.1"),
    ],
    ids=" ".join,
)
def test_what_the_train_engine_really_holds(overrides):
    config = load_config(RECIPE, ["device.name=cpu", *overrides])
    prepared = prepare(config)
    requires = prepared.algorithm.requires
    engine = registry.load("train_engine", "single")(EngineSetup(config, prepared.device, prepared.load, requires))
    for master in engine._optimizer.masters.values():
        master.grad = torch.zeros_like(master)
    gradients = held(master.grad for master in engine._optimizer.masters.values())
    engine._optimizer.adamw.step()
    state = engine._module.state_dict()
    moments = [value for slots in engine._optimizer.adamw.state.values() for value in slots.values() if value.ndim]
    real = {
        "weights": held(tensor for name, tensor in state.items() if ".lora_" not in name),
        "lora": held(tensor for name, tensor in state.items() if ".lora_" in name),
        "masters": held(engine._optimizer.separate_masters),
        "optimizer": held(moments),
        "gradients": gradients,
        "ema": held(engine._policies.copies["ema"].buffers()) if "ema" in engine._policies.copies else 0,
        "reference policy": held(engine._policies.copies["reference"].buffers())
        if "reference" in engine._policies.copies
        else 0,
    }
    planned = sizes(planned_on_cpu(overrides), "actor")
    assert {name: planned.get(name, 0) for name in real} == real


def test_teachers_are_held_whole_beside_the_student():
    from omni_portable.planning.resolve import make_plan

    recipe = "sd3/diffusion_opd_routed_tiny.yaml"
    config = load_config(recipe, ["device.name=cpu"])
    prepared = prepare(config)
    setup = EngineSetup(config, prepared.device, prepared.load, prepared.algorithm.requires)
    engine = registry.load("train_engine", "single")(setup)
    real = sum(held(module.state_dict().values()) for module in engine._teachers.modules())
    assert items(make_plan(recipe, "cpu"), "actor")["teachers"].bytes == real > 0


def test_teachers_of_a_pool_are_counted_where_they_share_the_device():
    from omni_portable.planning.resolve import make_plan

    recipe = "sd3/diffusion_opd_routed_tiny.yaml"
    inside = items(make_plan(recipe, "cpu"), "actor")["teachers"].bytes

    def pooled(*more):
        plan = make_plan(recipe, "cpu", overrides=["teacher.placement=pool", *more])
        found = items(plan, "actor").get("teachers")
        return 0 if found is None else found.bytes

    assert pooled() == inside
    assert pooled("teacher.workers=2") == 2 * inside
    assert pooled("launcher.name=ray") == 0


def planned_on_cpu(overrides):
    from omni_portable.planning.resolve import make_plan

    return make_plan(RECIPE, "cpu", overrides=overrides)


@pytest.mark.parametrize("overrides", [(), ("model.lora.rank=4", "device.dtype=bfloat16")], ids=" ".join)
def test_what_the_rollout_engine_really_holds(overrides):
    config = load_config(RECIPE, ["device.name=cpu", *overrides])
    prepared = prepare(config)
    engine = registry.load("rollout_engine", "native")(EngineSetup(config, prepared.device, prepared.load, Requires()))
    adapter = engine._adapter
    state = adapter.transformer.state_dict()
    real = {
        "weights": held(tensor for name, tensor in state.items() if ".lora_" not in name),
        "lora": held(tensor for name, tensor in state.items() if ".lora_" in name),
        "text encoders": sum(held(model.state_dict().values()) for model in adapter._text.models.values()),
        "vae": held(adapter._vae.state_dict().values()),
    }
    planned = sizes(planned_on_cpu(overrides), "rollout")
    assert {name: planned.get(name, 0) for name in real} == real


def test_phases_are_sums_of_items(plan):
    memory = plan().memory
    for phase in PHASES:
        total = sum(item.bytes for role in memory.roles for item in role.items if phase in item.phases)
        assert memory.phases[phase] == total
    assert memory.peak_bytes == max(memory.phases.values())
    assert memory.phases[memory.peak_phase] == memory.peak_bytes
    assert {role.placement for role in memory.roles} == {"replicated"}


def test_sleep_takes_the_rollout_engines_transformer_out_of_training(plan):
    awake, asleep, gone = (plan(f"rollout.sleep_level={level}").memory for level in (0, 1, 2))
    (role,) = [one for one in awake.roles if one.name == "rollout"]
    transformer = next(item.bytes for item in role.items if item.name == "weights")
    for phase in ("training", "optimizer_step"):
        assert awake.phases[phase] - asleep.phases[phase] == transformer
        assert asleep.phases[phase] == gone.phases[phase]
    for phase in ("rollout", "weight_sync"):
        assert awake.phases[phase] == asleep.phases[phase]
    assert [item.name for item in asleep.host] == ["trajectories", "sleeping weights"]
    assert asleep.host[1].bytes == transformer
    assert [item.name for item in gone.host] == ["trajectories"]


def test_guidance_doubles_the_forward_passes(plan):
    one, two = (sizes(plan(f"rollout.guidance_scale={scale}"), "actor") for scale in (1, 4))
    assert two["activations"] == 2 * one["activations"]
    assert two["batch"] > one["batch"]


def test_micro_batches_and_packs_scale_activations(plan):
    whole, half = plan("rollout.max_num_seqs=32"), plan("rollout.max_num_seqs=16")
    assert sizes(whole, "actor")["activations"] == 2 * sizes(half, "actor")["activations"]
    assert sizes(whole, "rollout")["latents"] == 2 * sizes(half, "rollout")["latents"]


def test_checkpointing_keeps_less(plan):
    plain, checkpointed = (sizes(plan(f"actor.gradient_checkpointing={on}"), "actor") for on in ("false", "true"))
    assert checkpointed["activations"] < plain["activations"] / 5
    assert checkpointed["backward pass"] > plain["backward pass"]


def test_weights_and_optimizer_are_divided_where_the_engine_shards(plan):
    spread = ("actor.engine=spread", "launcher.name=many")
    one, eight = plan(*spread, devices=1), plan(*spread, devices=8)
    for name in ("weights", "masters", "optimizer", "gradients"):
        assert sizes(eight, "actor")[name] == -(-sizes(one, "actor")[name] // 8)
        assert "/ 8 devices" in items(eight, "actor")[name].detail
    assert sizes(eight, "actor")["activations"] == sizes(one, "actor")["activations"]
    assert "gathered blocks" in sizes(eight, "actor")
    assert "gathered blocks" not in sizes(one, "actor")
    assert [role.placement for role in eight.memory.roles] == ["sharded", "replicated"]
    assert sizes(eight, "rollout") == sizes(one, "rollout")


def test_trajectories_wait_on_the_host_and_count_where_the_host_is_the_device(plan):
    (item,) = plan().memory.host
    latents = 256 * 9 * (4 * 16 * 24) * 4
    conditioning = 16 * (32 * 128 + 128) * 2
    assert item.bytes == latents + conditioning
    assert [role.name for role in plan().memory.roles] == ["actor", "rollout"]
    assert [role.name for role in planned_on_cpu(()).memory.roles] == ["actor", "rollout", "buffer"]


@pytest.mark.parametrize(
    ("memory", "status", "verdict"),
    [(None, "fits", "runs"), (GIB + 95 * MIB, "tight", "runs"), (GIB + 80 * MIB, "exceeds", "cannot_run")],
)
def test_against_the_capacity(plan, memory, status, verdict):
    made = plan(memory_bytes=memory)
    assert (made.memory.status, made.verdict) == (status, verdict)
    assert made.memory.capacity_bytes == (memory or 8 * GIB)
    assert made.memory.reserved_bytes == GIB
    assert [warning.about for warning in made.warnings] == (["memory"] if status == "tight" else [])


def test_a_capacity_that_only_the_machine_knows():
    made = planned_on_cpu(())
    assert (made.memory.status, made.memory.capacity_bytes, made.verdict) == ("capacity_unknown", None, "unknown")
    assert "known only on the machine itself" in made.warnings[0].problem


def test_what_would_make_it_fit(plan):
    made = plan(memory_bytes=GIB + 60 * MIB)
    (reason,) = made.reasons
    assert reason.about == "memory"
    assert "the training phase needs 91.6 MiB on one device, 'ray_gun:g1' has 60.0 MiB" in reason.problem
    fitting = [change for change in made.memory.changes if change.fits]
    assert reason.remedy.startswith(f"add {' '.join(fitting[0].overrides)} (peak ")
    for change in made.memory.changes:
        changed = plan(*change.overrides, memory_bytes=GIB + 60 * MIB)
        assert changed.memory.peak_bytes == change.peak_bytes
        assert (changed.memory.status in ("fits", "tight")) == change.fits


def test_changes_are_joined_where_no_single_one_is_enough(plan):
    usable = 22 * MIB
    made = plan(memory_bytes=GIB + usable)
    *single, joined = made.memory.changes
    assert not any(change.fits for change in single)
    assert joined.fits
    keys = [override.partition("=")[0] for override in joined.overrides]
    assert len(keys) == len(set(keys)) > 1
    assert plan(*joined.overrides, memory_bytes=GIB + usable).verdict == "runs"


def test_nothing_helps(plan):
    made = plan(memory_bytes=GIB + MIB)
    (reason,) = made.reasons
    assert reason.remedy == "use a device with 1.1 GiB or more, or a smaller model"
    assert reason.choices == ()


def test_a_reserve_larger_than_the_memory(plan):
    assert plan(memory_bytes=MIB).memory.status == "exceeds"


def test_validation_of_larger_samples_takes_more():
    plain = items(planned_on_cpu(()), "rollout")["activations"]
    larger = items(planned_on_cpu(("validation.height=64", "validation.width=64")), "rollout")["activations"]
    assert larger.bytes > plain.bytes
    assert "in validation with height 64, width 64" in larger.detail
    unused = planned_on_cpu(("validation.height=64", "validation.width=64", "data.validation="))
    assert items(unused, "rollout")["activations"] == plain
