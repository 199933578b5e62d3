"""Packages that adapters use without anybody having decided whether they are held against their signatures."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from ci.vendor_contracts.usage import VENDORS

FOLDERS = ("devices/omni_devices", "backends/omni_backends")
OWN = ("omni_portable", "omni_devices", "omni_backends")
ORDINARY = ("numpy", "omegaconf", "packaging", "peft", "psutil", "safetensors", "torch")
"""Packages that are installed wherever tests run, so that every call into them is made there."""


def unlisted(root: Path) -> list[str]:
    """Imports of packages that are neither a vendor's nor ordinary."""
    known = {vendor.partition(".")[0] for vendor in VENDORS} | {*ORDINARY, *OWN} | sys.stdlib_module_names
    return [
        f"{file.relative_to(root).as_posix()}:{line}: the package '{package}' is in no manifest: list it in VENDORS "
        "(ci/vendor_contracts/usage.py), or in ORDINARY (ci/vendor_contracts/outsiders.py) where tests always have it"
        for folder in FOLDERS
        for file in sorted((root / folder).rglob("*.py"))
        for line, package in _imported(ast.parse(file.read_text(encoding="utf-8")))
        if package not in known
    ]


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every absolute import, also of those inside functions and by literal name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name.partition(".")[0]) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module.partition(".")[0]
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name("import_module")):
                match node.args:
                    case [ast.Constant(str(name)), *_]:
                        yield node.lineno, name.partition(".")[0]
            case _:
                pass
