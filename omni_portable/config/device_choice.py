"""Which device a run uses: the one that is named, or with 'auto' the single one that is present.

Devices are known by their specs only; whether one counts as an accelerator is its spec's word ('accelerator', taken as
true where it is not given). Nothing here imports torch, and device classes do not before a method needs it.
"""

from __future__ import annotations

from typing import Any

from omni_portable.contracts import registry
from omni_portable.contracts.device import Device
from omni_portable.contracts.errors import DeviceError
from omni_portable.contracts.registry import PluginSpec

AUTO = "auto"


def device_specs() -> dict[str, PluginSpec]:
    """Spec of every registered device, by name in alphabetical order."""
    return {name: registry.spec("device", name) for name in registry.names("device")}


def device_choices() -> list[str]:
    """Every value `device.name` may take: 'auto', names, and names with a generation."""
    choices = [AUTO]
    for name, spec in device_specs().items():
        choices += [name, *(f"{name}:{generation}" for generation in spec.capabilities.get("generations", ()))]
    return choices


def parse_device(name: str) -> tuple[PluginSpec, str]:
    """'NAME' or 'NAME:GENERATION' -> the device's spec and the generation ('' where none is given), without hardware.

    Raises:
        DeviceError: no such device, or the device knows no such generation.
    """
    base, colon, generation = name.partition(":")
    specs = device_specs()
    if base not in specs:
        raise DeviceError(
            f"device.name={name}: no device '{base}' is registered",
            remedy="name one of the choices, or install the package that registers it",
            choices=device_choices(),
        )
    known = tuple(specs[base].capabilities.get("generations", ()))
    if colon and generation not in known:
        problem = f"no generation '{generation}'" if known else "no generations"
        raise DeviceError(
            f"device.name={name}: device '{base}' has {problem}",
            remedy="name the generation as in the choices, or leave it out to have it read from the driver",
            choices=[base, *(f"{base}:{one}" for one in known)],
        )
    return specs[base], generation


def choose_device(name: str = AUTO) -> Device:
    """The device for `device.name`, proved to be present.

    Device classes are built as ``Class(generation)``, where '' means the generation that the driver reports.

    Args:
        name: 'NAME', 'NAME:GENERATION', or 'auto': the only accelerator present; without one, the only other device.

    Raises:
        DeviceError: unknown, absent, of another generation, or with 'auto' more than one or none; the message says
            what was looked for and found.
    """
    if name == AUTO:
        return _choose_present()
    spec, generation = parse_device(name)
    device_class = spec.load()
    present, found = device_class.available()
    if not present:
        raise DeviceError(
            f"device.name={name}: device '{spec.name}' is not present: {found}",
            remedy="run where the device is, or name another",
            choices=[AUTO, *_present_names()],
        )
    device: Device = device_class(generation)
    if generation and device.generation != generation:
        raise DeviceError(
            f"device.name={name}: this machine has generation '{device.generation}' ({found})",
            remedy=f"set device.name={spec.name}:{device.generation}",
        )
    return device


def _choose_present() -> Device:
    findings = _look()
    present = [name for name, (_, _, is_present, _) in findings.items() if is_present]
    accelerators = [name for name in present if findings[name][0].capabilities.get("accelerator", True)]
    candidates = accelerators or present
    if len(candidates) == 1:
        device: Device = findings[candidates[0]][1]("")
        return device
    seen = "; ".join(f"{name}: {found}" for name, (_, _, _, found) in findings.items()) or "no device is registered"
    problem = f"{len(candidates)} devices are present" if candidates else "no device is present"
    raise DeviceError(
        f"device.name=auto: {problem} ({seen})",
        remedy="set device.name to one of the choices" if candidates else "install a package that registers a device",
        choices=candidates,
    )


def _look() -> dict[str, tuple[PluginSpec, Any, bool, str]]:
    """Every registered device: spec, class, whether it is present, and what it looked for and found."""
    findings = {}
    for name, spec in device_specs().items():
        device_class = spec.load()
        findings[name] = (spec, device_class, *device_class.available())
    return findings


def _present_names() -> list[str]:
    return [name for name, (_, _, is_present, _) in _look().items() if is_present]
