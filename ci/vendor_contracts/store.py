"""The stored signatures: `tests/contracts/signatures/<device>.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ci.vendor_contracts.contract import CONTRACTS, Entry
from ci.vendor_contracts.library import Library
from ci.vendor_contracts.operators import operators
from ci.vendor_contracts.packages import ALIASES, SIMULATED, Package, is_whole
from ci.vendor_contracts.surface import dumps, modules_used, of_modules
from ci.vendor_contracts.tables import REGISTRIES, registry_names
from ci.vendor_contracts.tree import Tree

Stored = dict[str, Any]


def path(stack: str) -> str:
    """Below the root."""
    return f"{CONTRACTS}/signatures/{stack}.json"


def read(root: Path, stack: str) -> Stored:
    """The stored signatures of a stack; empty ones where there is no file."""
    file = root / path(stack)
    if not file.is_file():
        return {"stack": stack, "sources": [], "registries": {name: [] for name in REGISTRIES}, "modules": {}}
    stored: Stored = json.loads(file.read_text(encoding="utf-8"))
    return stored


def make(stack: str, sources: Sequence[tuple[Package, Tree]], entries: Sequence[Entry]) -> str:
    """The text of the file, from the packages' sources.

    Raises:
        LookupError: a module that simulations need, or a registry of kernels, is not where it was.
    """
    trees = [tree for _, tree in sources]
    known = {
        module: operators(tree, library) for package, tree in sources for module, library in package.operators.items()
    }
    library = Library(trees, known, ALIASES)
    names = [entry.name for entry in entries if stack in entry.stacks]
    segments = frozenset(part for name in names for part in re.findall(r"\w+", name))
    modules = modules_used(library, names)
    for module in SIMULATED[stack]:
        if library.source_of(module) is None:
            raise LookupError(f"{stack}: no module '{module}' in {', '.join(tree.origin for tree in trees)}")
        modules.setdefault(module, set())
    return dumps(
        {
            "stack": stack,
            "sources": [_provenance(package, tree) for package, tree in sources],
            "registries": registry_names(library),
            "modules": of_modules(library, modules, segments, partial(is_whole, stack)),
        }
    )


def _provenance(package: Package, tree: Tree) -> Stored:
    facts = {"distribution": tree.distribution, "version": tree.version, "file": tree.origin, "sha256": tree.sha256}
    return facts | ({"instead": package.instead} if package.instead else {})
