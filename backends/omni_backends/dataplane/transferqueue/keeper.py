"""The process that owns a queue's large columns in Ray's object store. Loads without torch and TransferQueue."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray


@dataclass(frozen=True)
class Held:
    """Columns of one row.

    Args:
        references: Ray's, by column; this process owns what they stand for.
        until: on the clock of this process, when the row must have been written.
    """

    references: Mapping[str, Any]
    until: float


class Keeper:
    """An actor. An object of Ray lives as long as the process that made it, so this one makes them anew: what a writer
    handed over then outlives the writer, and is freed with its row. Calls are served one after another.

    An entry is what one call of `hold` brought. The row says which entry it means, so that of two writers with the same
    key neither removes what the other stored.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Held]] = {}

    def hold(self, key: str, entry: str, patience_s: float, names: Sequence[str], *columns: Any) -> None:
        """Copy columns into objects of this process.

        Args:
            patience_s: after that long an entry without a row is nobody's.
            names / columns: of the columns; Ray has resolved the references to them.

        Raises:
            ObjectStoreFullError / OutOfDiskError: no room, on the disk neither.
        """
        references = {name: ray.put(column) for name, column in zip(names, columns, strict=True)}
        self._held.setdefault(key, {})[entry] = Held(references, time.monotonic() + patience_s)

    def find(self, wanted: Sequence[tuple[str, str, str]]) -> list[Any]:
        """References for (key, entry, column), None where there is nothing."""
        found = []
        for key, entry, column in wanted:
            held = self._held.get(key, {}).get(entry)
            found.append(None if held is None else held.references.get(column))
        return found

    def keys(self) -> list[str]:
        """Of what is held."""
        return list(self._held)

    def withdraw(self, key: str, entry: str) -> None:
        """Free an entry whose row was not written."""
        entries = self._held.get(key, {})
        entries.pop(entry, None)
        if not entries:
            self._held.pop(key, None)

    def forget(self, keys: Collection[str]) -> None:
        """Free all entries of rows that were removed."""
        for key in keys:
            self._held.pop(key, None)

    def sweep(self, stored: Collection[str]) -> list[str]:
        """Free what a writer left that died before its row was written: entries that are overdue, of keys that are not
        `stored`. Their keys."""
        now, rows = time.monotonic(), set(stored)
        left = [
            (key, entry)
            for key, entries in self._held.items()
            if key not in rows
            for entry, held in entries.items()
            if held.until < now
        ]
        for key, entry in left:
            self.withdraw(key, entry)
        return sorted({key for key, _ in left})
