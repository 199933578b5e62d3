"""What cannot be checked, and why: `tests/contracts/exceptions.toml`. An unnecessary exception is an error."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ci.vendor_contracts.contract import CONTRACTS

FILE = f"{CONTRACTS}/exceptions.toml"


@dataclass(frozen=True)
class Unchecked:
    """A use whose real signature no source tells.

    Args:
        name: dotted path, as in the manifests.
        reason: why, for people.
        stacks: where; empty means everywhere.
    """

    name: str
    reason: str
    stacks: tuple[str, ...] = ()

    def covers(self, name: str, stack: str) -> bool:
        return self.name == name and (not self.stacks or stack in self.stacks)


@dataclass(frozen=True)
class Absent:
    """A package that a device names and the index does not have.

    Args:
        distribution: its name.
        reason: where it comes from instead.
        stacks: where; empty means everywhere.
    """

    distribution: str
    reason: str
    stacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exceptions:
    """Both lists."""

    unchecked: tuple[Unchecked, ...]
    absent: tuple[Absent, ...]


def read(root: Path) -> Exceptions:
    """The exceptions; none where the file is missing.

    Raises:
        ValueError: a table or key is unknown, or an exception has no reason.
    """
    file = root / FILE
    tables = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if unknown := set(tables) - {"unchecked", "absent"}:
        raise ValueError(f"{FILE}: unknown table {', '.join(sorted(unknown))}")
    return Exceptions(
        tuple(_build(Unchecked, table) for table in tables.get("unchecked", ())),
        tuple(_build(Absent, table) for table in tables.get("absent", ())),
    )


def _build(cls: Any, table: dict[str, Any]) -> Any:
    known = {field.name for field in fields(cls)}
    if wrong := set(table) - known:
        raise ValueError(f"{FILE}: unknown key {', '.join(sorted(wrong))}")
    if not str(table.get("reason", "")).strip():
        raise ValueError(f"{FILE}: an exception has no reason: {table}")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
