"""Small packages in memory, and source trees on disk, for the tests of the vendor contracts."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.vendor_contracts.check import Verdict, judge
from ci.vendor_contracts.contract import Entry
from ci.vendor_contracts.library import Library
from ci.vendor_contracts.surface import modules_used, of_modules
from ci.vendor_contracts.tree import Tree
from ci.vendor_contracts.usage import Call, Use, protocols, uses


class MemoryFiles:
    """Files in memory."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self._files = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}

    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    def read(self, name: str) -> bytes:
        return self._files[name]


def tree(files: Mapping[str, str | bytes], distribution: str = "vendor", version: str = "1.0") -> Tree:
    return Tree(distribution, version, f"{distribution}-{version}.whl", "0" * 64, MemoryFiles(files))


def library(files: Mapping[str, str | bytes], **options: Any) -> Library:
    return Library([tree(files)], **options)


def found(source: str, file: str = "devices/omni_devices/ascend/x.py") -> list[Use]:
    """Uses in a module of that text."""
    module = ast.parse(source)
    return uses(module, file, protocols([module]))


def entry(name: str, *calls: Call | None) -> Entry:
    return Entry(name, tuple(Use(name, call, "devices/omni_devices/ascend/x.py", "f", 7) for call in calls or (None,)))


def records(source: Library, names: Sequence[str]) -> dict[str, Any]:
    """Stored signatures, as they come back from JSON."""
    segments = frozenset(part for name in names for part in re.findall(r"\w+", name))
    made = of_modules(source, modules_used(source, names), segments, lambda module: module != "vllm")
    stored: dict[str, Any] = json.loads(json.dumps(made))
    return stored


def verdict(files: Mapping[str, str | bytes], name: str, call: Call | None = None, **options: Any) -> Verdict:
    """What comes of using the name of a package with these files."""
    return judge(records(library(files, **options), [name]), name, call)


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
