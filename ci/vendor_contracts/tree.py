"""The files of a distribution, read where they lie: in an archive or an unpacked folder."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Read access to a set of files by path."""

    def names(self) -> frozenset[str]: ...

    def read(self, name: str) -> bytes: ...


class WheelFiles:
    """The members of a wheel.

    Args:
        path: of the archive.
        only: members to show; empty means all.
    """

    def __init__(self, path: Path, only: Collection[str] = ()) -> None:
        self._archive = zipfile.ZipFile(path)
        self._only = frozenset(only)

    def names(self) -> frozenset[str]:
        names = frozenset(self._archive.namelist())
        return names & self._only if self._only else names

    def read(self, name: str) -> bytes:
        return self._archive.read(name)


class FolderFiles:
    """The files below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> frozenset[str]:
        return frozenset(path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()


@dataclass(frozen=True)
class Tree:
    """One distribution at one version.

    Args:
        distribution: name on the package index.
        version: exact version.
        origin: file name of the wheel or source archive.
        sha256: of the wheel; of a source archive, over path and content of its Python files.
        files: its content.
    """

    distribution: str
    version: str
    origin: str
    sha256: str
    files: Files = field(repr=False, compare=False)

    @cached_property
    def names(self) -> frozenset[str]:
        """Paths of all files."""
        return self.files.names()

    def text(self, name: str) -> str | None:
        """A file's text; None where there is no such file."""
        return self.files.read(name).decode("utf-8") if name in self.names else None


def python_digest(files: Files) -> str:
    """sha256 over path and content of every Python file, in order of paths."""
    digest = hashlib.sha256()
    for name in sorted(files.names()):
        if name.endswith((".py", ".pyi")) and ".." not in name:
            digest.update(name.encode() + b"\0" + files.read(name) + b"\0")
    return digest.hexdigest()
