"""Which device to plan for: by name, on any machine; only a device that is present can be asked for its generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omni_portable.config.convert import suggest
from omni_portable.config.device_choice import AUTO, choose_device, device_choices, device_specs
from omni_portable.contracts.device import Device, StaticProfile
from omni_portable.contracts.errors import ConfigError, DeviceError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class Target:
    """A device and generation, with what its tables say."""

    name: str
    generation: str
    profile: StaticProfile

    @property
    def where(self) -> str:
        """As `device.name` takes it."""
        return f"{self.name}:{self.generation}" if self.generation else self.name


def parse_target(text: str) -> tuple[PluginSpec, str]:
    """'NAME' or 'NAME:GENERATION' as typed after --device -> the device's spec and the generation ('' without one).

    Raises:
        ConfigError: no such device or generation; lists those that exist.
    """
    name, colon, generation = text.partition(":")
    specs = device_specs()
    if name not in specs:
        raise ConfigError(
            f"--device {text}: no device '{name}' is registered",
            remedy=suggest(name, specs) or "name one of the choices, or install the package that registers it",
            choices=[choice for choice in device_choices() if choice != AUTO],
        )
    known = tuple(specs[name].capabilities.get("generations", ()))
    if colon and generation not in known:
        raise ConfigError(
            f"--device {text}: device '{name}' has {f'no generation {generation!r}' if known else 'no generations'}",
            remedy=_other_generation(generation, known) if known else f"write --device {name}",
            choices=[f"{name}:{each}" for each in known] or [name],
        )
    return specs[name], generation


def _other_generation(named: str, known: tuple[str, ...]) -> str:
    """Names of hardware are close to each other without being slips: only one in other letters is suggested."""
    meant = next((each for each in known if each.lower() == named.lower()), None)
    return f"did you mean '{meant}'?" if meant else "name one of the choices; others are not supported"


def choose_target(text: str) -> Device:
    """The device that `text`, as typed after --device, names or with 'auto' means, proved to be present.

    Raises:
        ConfigError: no such device or generation, absent, of another generation, or with 'auto' none or several.
    """
    if text != AUTO:
        parse_target(text)
    with _said_of_the_option():
        return choose_device(text)


@contextmanager
def _said_of_the_option() -> Iterator[None]:
    """A device that cannot be had is a fault of the command line here; recipes call the option device.name."""
    try:
        yield
    except DeviceError as error:
        problem, remedy = (
            said.replace("device.name=", "--device ").replace("device.name", "--device")
            for said in (error.problem, error.remedy)
        )
        raise ConfigError(problem, remedy=remedy, choices=error.choices) from error


def resolve_target(text: str) -> Target:
    """'NAME:GENERATION', 'NAME' of a device without generations or of one that is present, or 'auto': what is present.

    Raises:
        ConfigError: no such device or generation, or a generation is missing; 'auto' where none or several devices are
            present, or a device that is present cannot be asked. Lists those that exist.
    """
    if text == AUTO:
        device = choose_target(AUTO)
        return Target(device.name, device.generation, type(device).static_profile(device.generation))
    spec, generation = parse_target(text)
    chosen = generation or _present_generation(spec)
    return Target(spec.name, chosen, spec.load().static_profile(chosen))


def _present_generation(spec: PluginSpec) -> str:
    """The generation that is in this machine, for a device named without one."""
    known = tuple(spec.capabilities.get("generations", ()))
    if not known:
        return ""
    device_class = spec.load()
    present, found = device_class.available()
    if present:
        with _said_of_the_option():
            return str(device_class("").generation)
    raise ConfigError(
        f"--device {spec.name}: a generation is needed, since this machine has no such device to ask ({found})",
        remedy="add the generation after a colon",
        choices=[f"{spec.name}:{each}" for each in known],
    )
