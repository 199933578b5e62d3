"""Which device is chosen: named, automatic, ambiguous, absent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from omni_portable.config import device_choice
from omni_portable.config.device_choice import choose_device, device_choices, device_specs, parse_device
from omni_portable.contracts.errors import DeviceError
from omni_portable.contracts.registry import PluginSpec

Install = Callable[..., None]


def fake_class(name: str, present: bool, found_generation: str) -> type:
    class Fake:
        def __init__(self, generation: str) -> None:
            self.name, self.generation = name, found_generation
            self.asked = generation

        @staticmethod
        def available() -> tuple[bool, str]:
            return present, f"{name} driver {'7.1' if present else 'not found'}"

    return Fake


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """install(host=True, alpha=True, beta=False): registers fakes, True where present; 'host' is no accelerator."""

    def register(**devices: bool) -> None:
        module = ModuleType("fake_devices")
        specs = {}
        for name, present in sorted(devices.items()):
            generation = "" if name == "host" else "g2"
            setattr(module, name, fake_class(name, present, generation))
            capabilities = {"generations": () if name == "host" else ("g1", "g2")}
            if name == "host":
                capabilities["accelerator"] = False
            specs[name] = PluginSpec(name, "", f"fake_devices:{name}", capabilities=capabilities)
        monkeypatch.setitem(sys.modules, "fake_devices", module)
        monkeypatch.setattr(device_choice, "device_specs", lambda: specs)

    return register


@pytest.mark.parametrize(
    ("devices", "name", "chosen", "generation"),
    [
        ({"host": True}, "auto", "host", ""),
        ({"host": True, "alpha": False}, "auto", "host", ""),
        ({"host": True, "alpha": True, "beta": False}, "auto", "alpha", "g2"),
        ({"host": True, "alpha": True, "beta": True}, "beta", "beta", "g2"),
        ({"host": True, "alpha": True}, "host", "host", ""),
        ({"host": True, "alpha": True}, "alpha:g2", "alpha", "g2"),
    ],
)
def test_choice(install: Install, devices: dict[str, bool], name: str, chosen: str, generation: str) -> None:
    install(**devices)
    device = choose_device(name)
    assert (device.name, device.generation) == (chosen, generation)
    assert device.asked == name.partition(":")[2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("devices", "name", "message"),
    [
        (
            {"host": True, "alpha": True, "beta": True},
            "auto",
            r"2 devices are present \(alpha: alpha driver 7.1; beta: beta driver 7.1; host: .*\n.*\n.*: alpha, beta$",
        ),
        ({"alpha": False}, "auto", r"no device is present \(alpha: alpha driver not found\)"),
        ({}, "auto", r"no device is present \(no device is registered\)"),
        ({"host": True, "alpha": False}, "alpha", r"not present: alpha driver not found\n.*\n.*choices: auto, host$"),
        ({"host": True, "alpha": True}, "gamma", r"no device 'gamma' .*\n.*\n.*auto, alpha, alpha:g1, alpha:g2, host$"),
        ({"host": True, "alpha": True}, "", r"no device '' is registered"),
        ({"host": True, "alpha": True}, "alpha:g9", r"no generation 'g9'\n.*\n.*alpha, alpha:g1, alpha:g2$"),
        ({"host": True, "alpha": True}, "alpha:", r"no generation ''"),
        ({"host": True, "alpha": True}, "host:g1", r"'host' has no generations"),
        ({"host": True, "alpha": True}, "alpha:g1", r"has generation 'g2' .*\n.*alpha:g2"),
    ],
)
def test_refusals(install: Install, devices: dict[str, bool], name: str, message: str) -> None:
    install(**devices)
    with pytest.raises(DeviceError, match=message):
        choose_device(name)


def test_parsing_looks_at_no_hardware(install: Install) -> None:
    install(alpha=False)
    spec, generation = parse_device("alpha:g1")
    assert (spec.name, generation) == ("alpha", "g1")


def test_registered_devices() -> None:
    assert device_specs()["cpu"].capabilities["accelerator"] is False
    assert {"auto", "cpu"} <= set(device_choices())
    assert choose_device("cpu").name == "cpu"
