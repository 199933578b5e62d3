"""A recipe on a device: what is chosen, what is refused, what is not known."""

from __future__ import annotations

import dataclasses

import pytest

from omni_portable.config.loader import list_recipes
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.models.sd3.tiny import build_tiny_sd3
from omni_portable.planning.resolve import make_plan
from omni_portable.planning.text import plan_as_text
from tests.planning.plan_fakes import PROFILE, RayGun

TOO_LARGE = {("sd3/diffusion_opd_routed", "ascend:a2")}
"""Two teachers beside the student are more than 32 GiB hold."""
DEVICES = ("cpu", "cuda:sm90", "rocm:gfx942", "ascend:a2", "ascend:a3", "ascend:a5")
LANGUAGE_FAMILIES = {"qwen3", "qwen_vl", "qwen3_omni"}


def about(plan):
    return {reason.about: reason for reason in plan.reasons}


def attending(family):
    """Components that ask for a kernel; Wan's text encoder and autoencoder have one implementation each."""
    if family in LANGUAGE_FAMILIES:
        return {"language_model"}
    return {"transformer"} if family == "wan22" else {"transformer", "text_encoder"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", list_recipes())
def test_every_recipe_on_every_device(recipe, device):
    """Whatever is on this machine: no model is built or downloaded, and head dimensions of all of them are known."""
    plan = make_plan(recipe, device)
    assert [reason.about for reason in plan.reasons] == (["memory"] if (recipe, device) in TOO_LARGE else [])
    assert {one.component for one in plan.attention} >= attending(recipe.partition("/")[0])
    assert all(one.family and one.actor and one.rollout and one.head_dim for one in plan.attention)
    assert plan.precision.dtype in plan.precision.choices
    assert plan.stack.evidence
    assert plan.where in plan_as_text(plan)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", [name for name in list_recipes() if name.startswith("sd3/")])
def test_memory_of_a_family_with_formulas(recipe, device):
    plan = make_plan(recipe, device)
    fits = "cannot_run" if (recipe, device) in TOO_LARGE else "runs"
    assert plan.verdict == ("unknown" if device == "cpu" else fits)
    assert plan.memory.peak_bytes == max(plan.memory.phases.values())


@pytest.mark.parametrize("recipe", [name for name in list_recipes() if not name.startswith("sd3/")])
def test_memory_of_a_family_without_formulas_is_unknown(recipe):
    plan = make_plan(recipe, "cuda:sm90")
    assert (plan.verdict, plan.memory.status, plan.memory.peak_bytes) == ("unknown", "sizes_unknown", None)
    assert "has no formulas of activations" in plan.memory.unknown
    assert [warning.about for warning in plan.warnings] == ["memory"]


def test_what_the_device_says(plan):
    made = plan()
    assert (made.device, made.generation, made.where) == ("ray_gun", "g1", "ray_gun:g1")
    assert made.verdict == "runs"
    assert made.precision.dtype == "bfloat16"
    assert "it is fast" in made.precision.reason
    assert dataclasses.asdict(made.collectives) == {"backend": "beamcl", "weight_channels": ("ipc", "broadcast")}
    assert (made.features, made.environment, made.notes) == ({"fp8": True}, {"BEAM": "1"}, ("it hums",))
    assert made.stack.packages[0].install == "pip install torch-beam==2"
    assert (made.stack.constraints, made.stack.image) == ("constraints/ray_gun.txt", "Dockerfile.ray_gun")
    transformer = made.attention[0]
    assert (transformer.family, transformer.actor, transformer.rollout) == ("beam", "actor_beam", "ROLLOUT_BEAM")
    assert (transformer.head_dim, transformer.package, transformer.reason) == (32, "beams==2", "asked")


def test_a_dtype_without_arithmetic(plan):
    reason = about(plan("device.dtype=float16"))["device.dtype"]
    assert "float16 has no usable arithmetic on 'ray_gun:g1'" in reason.problem
    assert reason.choices == ("bfloat16", "float32")


def test_kernels_that_cannot_be_had(plan):
    made = plan("device.dtype=float16")
    reasons = about(made)
    assert {"attention.transformer", "attention.text_encoder"} <= set(reasons)
    assert (reasons["attention.transformer"].remedy, reasons["attention.transformer"].choices) == (
        "take beam",
        ("beam",),
    )
    assert made.verdict == "cannot_run"
    assert made.attention[0].family == ""
    assert "none" in plan_as_text(made)


def test_a_kernel_for_one_component_is_refused_alone(plan):
    made = plan("device.attention.transformer=sword")
    assert list(about(made)) == ["attention.transformer"]
    assert [one.family for one in made.attention] == ["", "beam"]


def test_attention_of_a_component_that_the_model_lacks(plan):
    reason = about(plan("device.attention.vae=beam"))["attention.vae"]
    assert "which the model does not have" in reason.problem
    assert reason.choices == ("transformer", "text_encoder")


def test_a_device_without_a_table_of_kernels(plan, monkeypatch):
    monkeypatch.setattr(RayGun, "profile", dataclasses.replace(PROFILE, attention=None))
    assert "has no attention table" in about(plan())["attention.transformer"].problem


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("actor.engine=elsewhere", "actor.engine"),
        ("reward.scorers.second={kind: host_only}", "reward.scorers.second.kind"),
    ],
)
def test_parts_that_run_on_other_devices(plan, override, key):
    reason = about(plan(override))[key]
    assert "does not run on 'ray_gun:g1'" in reason.problem
    assert "cpu" in reason.choices


def test_parts_may_name_a_generation(plan):
    assert plan("actor.engine=elsewhere", device="ray_gun:g2").reasons == ()


def test_an_engine_that_does_not_sleep(plan):
    assert plan("rollout.engine=sleepless").reasons == ()
    with pytest.raises(ConfigError, match="rollout.engine=sleepless does not sleep so"):
        plan("rollout.engine=sleepless", "rollout.sleep_level=1")


@pytest.mark.parametrize(
    ("overrides", "asked", "used", "words"),
    [
        ((), 1, 1, "one device holds every role"),
        ((), 8, 1, "one device holds every role"),
        (("actor.engine=twins", "launcher.name=many"), 8, 2, "2 data-parallel replicas"),
        (("actor.engine=spread", "launcher.name=many"), 8, 8, "sharded over 8 devices"),
        (("actor.engine=spread",), 8, 1, "one device holds every role"),
    ],
)
def test_how_many_devices_are_used(plan, overrides, asked, used, words):
    made = plan(*overrides, devices=asked)
    assert (made.devices.asked, made.devices.used) == (asked, used)
    assert words in made.devices.use
    assert [warning.about for warning in made.warnings] == (["devices"] if used < asked else [])
    assert made.verdict == "runs"


def test_a_model_that_is_not_here_but_published(plan):
    made = plan("model.path=stabilityai/stable-diffusion-3.5-medium", "model.lora.rank=32", memory_bytes=10**12)
    assert made.memory.peak_bytes is not None
    assert "published for stabilityai/stable-diffusion-3.5-medium" in " ".join(made.assumptions)
    assert made.verdict == "runs"


def test_a_model_that_nobody_knows(plan):
    made = plan("model.path=/models/secret-sd3")
    assert (made.verdict, made.memory.status, made.memory.peak_bytes) == ("unknown", "sizes_unknown", None)
    assert "/models/secret-sd3 is not on this machine" in made.memory.unknown
    assert [one.family for one in made.attention] == ["beam"] * 3
    headline, _, text = plan_as_text(made).partition("\n")
    assert "its memory was NOT estimated" in headline
    assert "can run" not in headline
    assert "unknown: " in text
    assert not [one for one in made.assumptions if "bytes" in one or "activations" in one or "scorers" in one]
    assert plan("model.path=/models/secret-sd3", "device.attention.vae=sword").verdict == "cannot_run"


def test_headlines(plan):
    assert plan_as_text(plan()).partition("\n")[0].endswith(": can run there")
    refused = plan("model.path=/models/secret-sd3", "device.attention.vae=sword")
    assert plan_as_text(refused).partition("\n")[0].endswith(": cannot run there")
    open_capacity = plan(device="cpu")
    assert open_capacity.memory.status == "capacity_unknown"
    assert "how much memory is there is not known" in plan_as_text(open_capacity).partition("\n")[0]
    assert open_capacity.assumptions


def test_a_family_without_an_outline(plan, monkeypatch):
    monkeypatch.setitem(registry.spec("model", "sd3").capabilities, "outline", None)
    made = plan()
    assert made.verdict == "unknown"
    assert made.attention == ()
    assert {warning.about for warning in made.warnings} == {"memory", "attention"}
    headline = plan_as_text(made).partition("\n")[0]
    assert "NOT estimated" in headline
    assert "which attention kernels it needs is not known" in headline


def test_a_damaged_folder_is_an_error(plan, tmp_path):
    folder = build_tiny_sd3(tmp_path / "model")
    assert plan(f"model.path={folder}", "rollout.width=32").verdict == "runs"
    (folder / "vae" / "config.json").unlink()
    with pytest.raises(ModelError, match="vae/config.json does not exist"):
        plan(f"model.path={folder}", "rollout.width=32")


@pytest.mark.parametrize(
    "override",
    ["rollout.height=22", "model.lora={rank: 4, targets: [attn.to_x]}", "rollout.nn=3", "model.path=builtin:x"],
)
def test_recipes_that_cannot_be(plan, override):
    with pytest.raises(ConfigError):
        plan(override)


def test_an_unknown_recipe(plan):
    with pytest.raises(ConfigError, match="no recipe"):
        plan(recipe="sd3/nothing")


def test_the_recipe_is_resolved_for_the_device(plan, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("defaults: [/sd3/flow_grpo_ocr_tiny@_global_, _self_]\ndevice: {name: cpu}\n")
    assert plan(recipe=str(recipe)).where == "ray_gun:g1"
