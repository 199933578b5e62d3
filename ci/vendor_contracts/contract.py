"""Our side of the contract: all uses in the source tree, and the manifests that record them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.vendor_contracts.usage import Use, protocols, uses

FOLDERS = ("devices/omni_devices", "backends/omni_backends", "omni_portable")
CONTRACTS = "tests/contracts"
DEVICES = "devices/omni_devices/"
STACKS = ("cpu", "cuda", "rocm", "ascend")
APART = {
    "backends/omni_backends/rollout/vllm/": ("cpu", "cuda", "rocm"),
    "backends/omni_backends/rollout/vllm_omni/": ("cpu", "cuda", "rocm"),
}
"""Folders of adapters whose supported versions (they refuse others at start-up) are not those of every device."""


@dataclass(frozen=True)
class Entry:
    """One vendor's name and all that our code does with it."""

    name: str
    uses: tuple[Use, ...]

    @property
    def root(self) -> str:
        """The top-level module, which names the manifest."""
        return self.name.partition(".")[0].removesuffix("()")

    @property
    def stacks(self) -> tuple[str, ...]:
        """Devices whose pinned packages must have it: of a device's own folder that device, else every one."""
        found = {stack for use in self.uses for stack in stacks_of(use.file)}
        return tuple(stack for stack in STACKS if stack in found)

    @property
    def probed(self) -> bool:
        """Whether every file that uses it asks for it first."""
        return all(use.probed for use in self.uses)

    def record(self) -> dict[str, Any]:
        """For the manifest, without line numbers, which change with every edit."""
        forms = sorted({str(use.call) if use.call else "read" for use in self.uses})
        where = sorted({f"{use.file}:{use.scope}" if use.scope else use.file for use in self.uses})
        probed = {"probed": True} if self.probed else {}
        return {"name": self.name, "stacks": list(self.stacks), "used": forms, **probed, "where": where}


def stacks_of(file: str) -> tuple[str, ...]:
    """The devices that a source file serves."""
    for apart, stacks in APART.items():
        if file.startswith(apart):
            return stacks
    folder = file.removeprefix(DEVICES).partition("/")[0] if file.startswith(DEVICES) else ""
    return (folder,) if folder in STACKS else STACKS


def entries(root: Path) -> list[Entry]:
    """Every vendor's name that our source uses, by name."""
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    trees = {file.relative_to(root).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}
    known = protocols(list(trees.values()))
    found: dict[str, list[Use]] = {}
    for name, tree in trees.items():
        for use in uses(tree, name, known):
            found.setdefault(use.name, []).append(use)
    return [Entry(name, tuple(group)) for name, group in sorted(found.items())]


def manifests(found: Iterable[Entry]) -> dict[str, str]:
    """Path below the root -> content: one manifest for each top-level module."""
    groups: dict[str, list[Entry]] = {}
    for entry in found:
        groups.setdefault(entry.root, []).append(entry)
    return {f"{CONTRACTS}/{root}.json": _manifest(root, group) for root, group in sorted(groups.items())}


def _manifest(root: str, group: Iterable[Entry]) -> str:
    lines = ",\n".join(f"  {json.dumps(entry.record())}" for entry in group)
    return f'{{\n "package": "{root}",\n "uses": [\n{lines}\n ]\n}}\n'


def stale(root: Path, wanted: Mapping[str, str]) -> list[str]:
    """Manifests that differ from the source, are missing, or belong to a package that is not used any more."""
    found = []
    for path, text in wanted.items():
        file = root / path
        old = file.read_text(encoding="utf-8") if file.is_file() else ""
        if old != text:
            new_lines, old_lines = ({line.rstrip(",") for line in one.splitlines()} for one in (text, old))
            changed = sorted(new_lines ^ old_lines)
            example = next((line.strip() for line in changed if '"name"' in line), "the file is missing")
            found.append(f"{path} is stale ({len(changed)} lines differ), for example: {example[:200]}")
    for file in sorted((root / CONTRACTS).glob("*.json")):
        path = file.relative_to(root).as_posix()
        if path not in wanted:
            found.append(f"{path} is stale: nothing uses this package any more")
    return found
