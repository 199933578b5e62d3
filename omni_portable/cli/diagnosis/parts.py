"""Plugins, recipes and devices: is everything that is registered really there?"""

from __future__ import annotations

from collections.abc import Iterator

from omni_portable.cli.diagnosis.check import UNUSABLE, Check, one_line, remedy_of
from omni_portable.cli.diagnosis.stack import state_of
from omni_portable.config.loader import load_config
from omni_portable.config.recipes import list_recipes
from omni_portable.contracts import registry
from omni_portable.contracts.errors import PluginError
from omni_portable.contracts.registry import PluginSpec


def plugin_checks(load: bool) -> Iterator[Check]:
    """Every registered plugin's description; with `load` its code too, which imports torch."""
    names: list[tuple[str, str]] = []
    optional: list[str] = []
    problems = 0
    for kind in registry.GROUPS:
        try:
            names += [(kind, name) for name in registry.names(kind)]
        except UNUSABLE as error:
            problems += 1
            yield Check(f"{kind} plugins", "fail", one_line(error), remedy_of(error, "reinstall their packages"))
    for kind, name in names:
        try:
            spec = registry.spec(kind, name)
            if load and (missing := _missing(spec)):
                optional.append(f"{name} (pip install 'omni-portable[{spec.extra}]' for {missing})")
        except UNUSABLE as error:
            problems += 1
            yield Check(f"{kind} '{name}'", "fail", one_line(error), remedy_of(error, "reinstall its package"))
    if not names and not problems:
        yield Check(
            "plugins", "fail", "none is registered", "pip install -e . (entry points are written on installation)"
        )
    elif not problems:
        yield Check("plugins", "ok", f"{len(names)} registered" + (" and importable" if load else ""))
    if optional:
        yield Check("optional parts", "ok", "not installed: " + "; ".join(optional))


def _missing(spec: PluginSpec) -> str:
    """The module that an optional plugin lacks, once its code is imported; empty where nothing is.

    Raises:
        PluginError: a plugin that is not optional lacks a module.
    """
    try:
        spec.load()
    except PluginError as error:
        if not spec.extra or not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        return str(error.__cause__.name)
    return ""


def recipe_checks() -> Iterator[Check]:
    """Every packaged recipe must pass its own checks."""
    names = list_recipes()
    problems = 0
    for name in names:
        try:
            load_config(name)
        except UNUSABLE as error:
            problems += 1
            yield Check(f"recipe '{name}'", "fail", one_line(error), remedy_of(error, "look at the plugins above"))
    if not names:
        yield Check("recipes", "warn", "no packaged recipe was found", "reinstall omni-portable")
    elif not problems:
        yield Check("recipes", "ok", f"{len(names)} packaged recipes pass their checks")


def device_checks(ask: bool) -> Iterator[Check]:
    """Which devices are present; with `ask` each is asked what it is, which imports torch and touches its driver.
    Without, files and metadata are looked at."""
    present = 0
    for name in _device_names():
        try:
            spec = registry.spec("device", name)
            device_class = spec.load()
            available, found = device_class.available() if ask else _looked_for(spec)
            if not available:
                yield Check(f"device '{name}'", "ok", f"not present: {found}")
                continue
            present += 1
            yield Check(f"device '{name}'", "ok", _identity(device_class) if ask else f"present: {found}")
        except UNUSABLE as error:
            yield Check(
                f"device '{name}'", "fail", one_line(error), remedy_of(error, "look at the driver's installation")
            )
    if not present:
        yield Check("devices", "fail", "no device is usable", "install a package that registers a device")


def _device_names() -> list[str]:
    """None where they cannot be read: the plugins' check says why."""
    try:
        return registry.names("device")
    except UNUSABLE:
        return []


def _looked_for(spec: PluginSpec) -> tuple[bool, str]:
    state = state_of(spec)
    return state.present, state.found


def _identity(device_class: type) -> str:
    device = device_class("")
    identity, capabilities = device.identity(), device.capabilities()
    memory = device.memory.stats()
    generation = f" ({identity.generation})" if identity.generation else ""
    room = f"{memory.free / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    return f"{identity.count} x {identity.model}{generation}, {room}, default dtype {capabilities.default_dtype}"
