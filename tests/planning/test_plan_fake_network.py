"""Memory of a fake score network, as planned and as the engine holds it."""

from __future__ import annotations

import pytest
import torch

from omni_portable.config.loader import load_config
from omni_portable.contracts import registry
from omni_portable.models.setup import EngineSetup
from omni_portable.planning.resolve import make_plan
from omni_portable.trainer.preflight import prepare

RECIPE = "sd3/dmd2_glyphs_tiny"


@pytest.mark.parametrize("overrides", [(), ("model.lora.rank=4",)], ids=" ".join)
def test_it_has_weights_and_two_moments_of_what_is_trained(overrides: tuple[str, ...]):
    config = load_config(RECIPE, ["device.name=cpu", *overrides])
    prepared = prepare(config)
    setup = EngineSetup(config, prepared.device, prepared.load, prepared.algorithm.requires)
    engine = registry.load("train_engine", "single")(setup)
    fake = engine._fake.optimizer
    for master in fake.masters.values():
        master.grad = torch.zeros_like(master)
    fake.adamw.step()
    moments = [value for slots in fake.adamw.state.values() for value in slots.values() if value.ndim]
    real = sum(tensor.nbytes for tensor in (*engine._policies.fake.parameters(), *moments))
    plan = make_plan(RECIPE, "cpu", overrides=overrides)
    (role,) = [role for role in plan.memory.roles if role.name == "actor"]
    assert {item.name: item.bytes for item in role.items}["fake network"] == real
