from __future__ import annotations

import pytest

from omni_portable.planning.plan import Plan
from omni_portable.planning.resolve import make_plan
from tests.planning.plan_fakes import RECIPE, install_fakes


@pytest.fixture
def fakes(monkeypatch):
    install_fakes(monkeypatch)


@pytest.fixture
def plan(fakes):
    """Plan the packaged recipe for the made-up accelerator."""

    def make(*overrides: str, device: str = "ray_gun:g1", recipe: str = RECIPE, **arguments) -> Plan:
        return make_plan(recipe, device, overrides=overrides, **arguments)

    return make
