"""Sets of pins: what dockerfiles/constraints/sets.toml says of them, and the pins themselves."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name

SETS = "dockerfiles/constraints/sets.toml"


@dataclass(frozen=True)
class IndexGap:
    """What the index cannot give.

    Args:
        package: name of the distribution.
        version: that the image installs, local part included.
        kind: 'absent': the index has no such version; 'sdist': it has no wheel, and only wheels can be resolved for
            another machine.
        reason: why, for people.
        source: where the image gets it from.
        requires: what the package itself requires.
        machines: where it applies; empty means all of the set's.
    """

    package: str
    version: str
    kind: Literal["absent", "sdist"]
    reason: str
    source: str
    requires: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()


@dataclass(frozen=True)
class PinSet:
    """One file of pins.

    Args:
        name: of the file, without suffix.
        python: 'MAJOR.MINOR' of the image.
        glibc: newest minor of glibc 2 that wheels may need: the image's.
        machines: as in `platform.machine()`.
        extras: of the product.
        requirements: what the image installs besides the product.
        requirement_files: files of more of them, paths in the source tree.
        exceptions: see :class:`IndexGap`.
    """

    name: str
    python: str
    glibc: int
    machines: tuple[str, ...]
    extras: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    requirement_files: tuple[str, ...] = ()
    exceptions: tuple[IndexGap, ...] = ()

    @property
    def path(self) -> str:
        return f"dockerfiles/constraints/{self.name}.txt"


def read_sets(root: Path) -> dict[str, PinSet]:
    """Name -> set.

    Raises:
        ValueError: a key is unknown or missing, or an exception has no reason or source.
    """
    found = {}
    for name, table in tomllib.loads((root / SETS).read_text(encoding="utf-8")).items():
        exceptions = tuple(_exception(name, entry) for entry in table.pop("exceptions", ()))
        found[name] = _build(PinSet, f"[{name}]", {"name": name, "exceptions": exceptions, **table})
    return found


def _exception(name: str, entry: Mapping[str, Any]) -> IndexGap:
    made = _build(IndexGap, f"an exception of [{name}]", entry)
    if made.kind not in ("absent", "sdist") or not made.reason.strip() or not made.source.strip():
        raise ValueError(f"{SETS}: the exception '{made.package}' of [{name}] needs a kind, a reason and a source")
    return made


def _build(cls: Any, where: str, entry: Mapping[str, Any]) -> Any:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{SETS}: {where}: {error}") from None


def read_pins(path: Path) -> dict[str, str]:
    """Canonical name -> version of a file of `NAME==VERSION` lines.

    Raises:
        ValueError: a line is something else, or a package has two pins.
    """
    pins: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, equal, version = text.partition("==")
        key = canonicalize_name(name.strip())
        if not equal or not version or key in pins:
            raise ValueError(f"{path.name}: '{text}' is no pin NAME==VERSION, or the second one of '{key}'")
        pins[key] = version.strip()
    return pins
