"""The devices' tables: every kernel's name must exist in the pinned libraries, every package on the index."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ci.vendor_contracts.contract import DEVICES, STACKS
from ci.vendor_contracts.library import Library
from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL, KernelTable, Names
from omni_portable.contracts.device import Component, PackageNeed

REGISTRIES: Mapping[str, tuple[str, str]] = {
    "diffusers": ("diffusers.models.attention_dispatch", "AttentionBackendName"),
    "transformers": ("transformers.modeling_utils", "AttentionInterface._global_mapping"),
    "vllm": ("vllm.v1.attention.backends.registry", "AttentionBackendEnum"),
    "vllm_omni": ("vllm_omni.diffusion.attention.backends.registry", "DiffusionAttentionBackendEnum"),
}
"""Library -> where its names of attention kernels are defined. transformers has 'eager' outside of its registry."""
MANIFEST = "tests/contracts/attention_names.json"


@dataclass(frozen=True)
class Spelling:
    """A library's name of a kernel in a device's table."""

    library: str
    name: str
    stack: str
    family: str
    component: Component

    def __str__(self) -> str:
        return f"{self.stack}: family '{self.family}' for {self.component} is '{self.name}' in {self.library}"


def device_modules(root: Path) -> Iterator[tuple[str, ModuleType]]:
    """(device, module) for every module of a device; they load without torch."""
    for stack in STACKS:
        for file in sorted((root / DEVICES / stack).glob("*.py")):
            if "KernelTable" in (text := file.read_text(encoding="utf-8")) or "PackageNeed" in text:
                yield stack, importlib.import_module(f"omni_devices.{stack}.{file.stem}")


def spellings(root: Path) -> list[Spelling]:
    """Every name in the devices' tables.

    Raises:
        ValueError: a device has no table.
    """
    found: dict[Spelling, None] = {}
    tables = [(stack, value) for stack, module in device_modules(root) for value in _values(module, KernelTable)]
    if missing := [stack for stack in STACKS if stack not in {stack for stack, _ in tables}]:
        raise ValueError(f"no KernelTable in {DEVICES} of {', '.join(missing)}")
    for stack, table in tables:
        for row in table.rows:
            for component, names in row.names.items():
                for library, name in _names(component, names):
                    found[Spelling(library, name, stack, row.family, component)] = None
    return list(found)


def needs(root: Path) -> list[tuple[str, PackageNeed]]:
    """(device, package) for every package that a device names."""
    found: dict[tuple[str, str, str], tuple[str, PackageNeed]] = {}
    for stack, module in device_modules(root):
        direct = list(_values(module, PackageNeed))
        rows = [row for table in _values(module, KernelTable) for row in table.rows]
        for need in [*direct, *(need for row in rows for need in (*row.needs, *row.rollout_needs))]:
            found[stack, need.distribution, need.specifier] = (stack, need)
    return list(found.values())


def manifest(found: Sequence[Spelling]) -> str:
    """Library -> name -> where the tables have it."""
    names: dict[str, dict[str, list[str]]] = {}
    for one in found:
        where = f"{one.stack}:{one.family}:{one.component}"
        names.setdefault(one.library, {}).setdefault(one.name, []).append(where)
    lines = [
        f' "{library}": {{\n'
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(sorted(set(group[name])))}" for name in sorted(group))
        + "\n }"
        for library, group in sorted(names.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def registry_names(library: Library) -> dict[str, list[str]]:
    """Library -> names of kernels that it knows.

    Raises:
        LookupError: a registry is not where it was.
    """
    return {name: sorted(_registry(library, *where)) for name, where in REGISTRIES.items()}


def unknown(found: Sequence[Spelling], stack: str, registries: Mapping[str, Sequence[str]]) -> list[str]:
    """Names of a device's table that the pinned library does not have."""
    problems = []
    for one in found:
        if one.stack == stack and one.name not in registries[one.library]:
            problems.append(
                f"{one}, which the pinned {one.library} does not have; it has {', '.join(registries[one.library])}"
            )
    for library in ("vllm", "vllm_omni"):
        if NO_ROLLOUT_KERNEL in registries[library]:
            problems.append(f"{stack}: {library} has a kernel '{NO_ROLLOUT_KERNEL}', which stands for having none")
    return problems


def disagreements(found: Sequence[tuple[str, PackageNeed]], stack: str, pins: Mapping[str, str]) -> list[str]:
    """Packages that a device wants in another version than its constraints pin."""
    return [
        f"{stack}: omni_devices wants {need.distribution}{need.specifier}, but the constraints pin {pinned}"
        for device, need in found
        if device == stack and (pinned := pins.get(canonicalize_name(need.distribution)))
        if not SpecifierSet(need.specifier).contains(pinned, prereleases=True)
    ]


def _names(component: Component, names: Names) -> Iterator[tuple[str, str]]:
    yield names.actor_library, names.actor
    if names.rollout != NO_ROLLOUT_KERNEL:
        yield "vllm" if component == "language_model" else "vllm_omni", names.rollout


def _values(module: ModuleType, kind: type) -> Iterator[Any]:
    """Instances of a class among a module's own values and in its tuples."""
    for value in vars(module).values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, kind):
                yield one


def _registry(library: Library, module: str, name: str) -> Iterator[str]:
    member = library.find(module, name)
    if member is None:
        raise LookupError(f"{module} has no '{name}'")
    if isinstance(member.node, ast.ClassDef):
        for statement in member.node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                # diffusers spells by value, vLLM's enumerations by name
                by_value = isinstance(statement.value, ast.Constant) and module.startswith("diffusers")
                yield str(ast.literal_eval(statement.value)) if by_value else statement.targets[0].id
    elif isinstance(member.node, ast.Assign | ast.AnnAssign) and isinstance(member.node.value, ast.Dict):
        yield from (ast.literal_eval(key) for key in member.node.value.keys if key is not None)
        yield "eager"
    else:
        raise LookupError(f"{module}.{name} is no enumeration and no dictionary")
