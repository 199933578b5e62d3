"""What needs the package index: the real sources, and whether it has the packages that devices name."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ci.vendor_contracts import contract, exceptions, store, tables
from ci.vendor_contracts.check import findings
from ci.vendor_contracts.contract import Entry
from ci.vendor_contracts.exceptions import Absent
from ci.vendor_contracts.fetch import fetch
from ci.vendor_contracts.packages import ALSO, STACKS, pins, version_of
from omni_portable.contracts.device import PackageNeed


def problems(root: Path, update: bool = False) -> list[str]:
    """Signatures that are not those of the packages, and packages that the index does not have.

    Args:
        root: of the source tree.
        update: write the signatures instead of comparing them.

    Raises:
        FetchError: a package could not be brought.
    """
    entries = contract.entries(root)
    found = []
    for stack, packages in STACKS.items():
        pinned = pins(root, stack)
        sources = [(package, fetch(root, package, version_of(package, pinned))) for package in packages]
        text = store.make(stack, sources, entries)
        file = root / store.path(stack)
        old = file.read_text(encoding="utf-8") if file.is_file() else ""
        if update and text != old:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(store.path(stack))
        elif text != old:
            found.append(f"{store.path(stack)} differs from the packages: {_first_difference(old, text)}")
    for stack, sets in ALSO.items():
        for label, packages in sets.items():
            pinned = pins(root, stack)
            sources = [(package, fetch(root, package, version_of(package, pinned))) for package in packages]
            records = json.loads(store.make(stack, sources, entries))
            found += [f"with {label}: {problem}" for problem in _drift(root, stack, records, entries)]
    return found + missing_packages(tables.needs(root), exceptions.read(root).absent)


def _drift(root: Path, stack: str, stored: store.Stored, entries: Sequence[Entry]) -> list[str]:
    """What a set of packages that is not stored does not agree with."""
    return tables.unknown(tables.spellings(root), stack, stored["registries"]) + [
        f"{one.where}: {one.entry.name}: {one.verdict.reason}"
        for one in findings(entries, stack, stored["modules"])
        if one.verdict.outcome == "drift" and not one.entry.probed
    ]


def missing_packages(needs: Sequence[tuple[str, PackageNeed]], allowed: Sequence[Absent]) -> list[str]:
    """Packages that a device names and the index lacks, and exceptions for some that it has."""
    found: list[str] = []
    used: set[Absent] = set()
    known: dict[str, list[str]] = {}
    for stack, need in needs:
        name = canonicalize_name(need.distribution)
        if name not in known:
            known[name] = published(name)
        if any(SpecifierSet(need.specifier).contains(version, prereleases=True) for version in known[name]):
            continue
        covering = [one for one in allowed if canonicalize_name(one.distribution) == name]
        covering = [one for one in covering if not one.stacks or stack in one.stacks]
        used.update(covering)
        if not covering:
            newest = known[name][0] if known[name] else "nothing"
            found.append(f"{stack}: {need.distribution}{need.specifier} is not on the index, which has {newest}")
    return found + [
        f"{exceptions.FILE}: the exception for {one.distribution} is unnecessary: the index has it, or nothing names it"
        for one in allowed
        if one not in used
    ]


def published(distribution: str) -> list[str]:
    """Versions on the index, newest first, for any Python and machine that pip can be asked for; none if unknown."""
    found: list[str] = []
    for options in ([], ["--python-version", "3.12", "--platform", "manylinux_2_34_x86_64"]):
        command = [sys.executable, "-m", "pip", "index", "versions", "--pre", "--json", *options, distribution]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if result.returncode == 0:
            found += json.loads(result.stdout)["versions"]
    return found


def _first_difference(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "stored", "package", n=0, lineterm="")
    changed = [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    return f"{len(changed)} lines, first {changed[0][:300]}"
