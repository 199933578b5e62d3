"""Which device to plan for: every name that exists, and what is said of those that do not."""

from __future__ import annotations

import pytest

from omni_portable.config import device_choice
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError, DeviceError
from omni_portable.planning.target import resolve_target
from tests.planning.plan_fakes import RayGun


def test_a_device_that_is_not_here(fakes):
    target = resolve_target("ray_gun:g2")
    assert (target.name, target.generation, target.where) == ("ray_gun", "g2", "ray_gun:g2")
    assert target.profile.generation == "g2"


def test_a_device_without_generations():
    target = resolve_target("cpu")
    assert (target.name, target.generation, target.where) == ("cpu", "", "cpu")


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm", "ascend"])
def test_every_generation_of_every_device_has_a_profile(name):
    for generation in registry.spec("device", name).capabilities["generations"] or ("",):
        profile = resolve_target(f"{name}:{generation}" if generation else name).profile
        assert (profile.name, profile.generation) == (name, generation)
        assert profile.attention is not None
        assert profile.packages
        assert profile.constraints
        assert profile.image


@pytest.mark.parametrize(
    ("name", "problem", "choices"),
    [
        ("ray_gun", "a generation is needed", ("ray_gun:g1", "ray_gun:g2")),
        ("ray_gun:g3", "no generation 'g3'", ("ray_gun:g1", "ray_gun:g2")),
        ("ray_gun:", "no generation ''", ("ray_gun:g1", "ray_gun:g2")),
        ("cpu:g1", "no generations", ("cpu",)),
    ],
)
def test_bad_generations(fakes, name, problem, choices):
    with pytest.raises(ConfigError, match=f"--device {name}.*{problem}") as error:
        resolve_target(name)
    assert error.value.choices == choices
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ray_gun:G2", "did you mean 'g2'?"),
        ("ray_gun:g3", "name one of the choices; others are not supported"),
        ("cpu:g1", "write --device cpu"),
    ],
)
def test_a_neighbour_is_not_taken_for_a_slip(fakes, name, remedy):
    with pytest.raises(ConfigError) as error:
        resolve_target(name)
    assert error.value.remedy == remedy


def test_no_device_to_choose_from_is_said_in_terms_of_the_option(monkeypatch):
    monkeypatch.setattr(device_choice, "device_specs", lambda: {})
    with pytest.raises(ConfigError, match="^--device auto: no device is present") as error:
        resolve_target("auto")
    assert error.value.exit_code == 2


def test_a_device_that_cannot_be_asked(fakes, monkeypatch):
    def asked(self, generation=""):
        raise DeviceError("the driver is silent", remedy="set device.name=ray_gun:g1")

    monkeypatch.setattr(RayGun, "present", True)
    monkeypatch.setattr(RayGun, "__init__", asked)
    with pytest.raises(ConfigError, match="the driver is silent") as error:
        resolve_target("ray_gun")
    assert error.value.remedy == "set --device ray_gun:g1"


def test_an_unknown_device(fakes):
    with pytest.raises(ConfigError, match="no device 'ray_gum' is registered") as error:
        resolve_target("ray_gum:g1")
    assert error.value.remedy == "did you mean 'ray_gun'?"
    assert {"cpu", "ray_gun", "ray_gun:g1"} <= set(error.value.choices)


def test_a_present_device_is_asked_for_its_generation(fakes, monkeypatch):
    monkeypatch.setattr(RayGun, "present", True)
    assert resolve_target("ray_gun").where == "ray_gun:g2"


def test_what_is_present(fakes, monkeypatch):
    specs = {name: registry.spec("device", name) for name in ("cpu", "ray_gun")}
    monkeypatch.setattr(device_choice, "device_specs", lambda: specs)
    assert resolve_target("auto").where == "cpu"
    monkeypatch.setattr(RayGun, "present", True)
    assert resolve_target("auto").where == "ray_gun:g2"
