"""What is stored and on its way, counted in this process against the capacity. Loads without torch."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping

FREEING_S = 3.0
"""Seconds within which memory of removed rows is free for others."""


class Ledger:
    """Rows and bytes by key. Every call is atomic.

    Args:
        rows / size: capacity in rows and in bytes.
    """

    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size
        self._stored: dict[str, int] = {}
        self._coming: dict[str, int] = {}
        self._held = 0
        self._changes = 0
        self._brim, self._brim_until, self._freed = 0, 0.0, -math.inf
        self._lock = threading.Lock()

    def __str__(self) -> str:
        with self._lock:
            count = len(self._stored) + len(self._coming)
            said = f"{count} of {self._rows} groups and {mib(self._held)} of {mib(self._size)} MiB are taken"
            return f"{said}, and Ray's object store has no room for more" if self._brim else said

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._stored or key in self._coming

    def fits(self, size: int) -> bool:
        """Is there room for one more row of `size` bytes?"""
        with self._lock:
            return self._fits(size)

    def reserve(self, key: str, size: int) -> bool:
        """Take room for a row that is about to be stored; False where there is none."""
        with self._lock:
            if not self._fits(size):
                return False
            self._coming[key] = size
            self._held += size
            return True

    def settle(self, key: str, stored: bool) -> None:
        """The row that room was taken for is stored, or is not."""
        with self._lock:
            size = self._coming.pop(key)
            if stored:
                self._stored[key] = size
            else:
                self._held -= size
            self._changes += 1

    def overflow(self, key: str) -> bool:
        """The memory that the capacity stands for had no room for the row `key`, which room was taken for: there is
        none for any until rows are removed, or until what was removed just now is free indeed. False where there are
        neither, so that waiting would be in vain."""
        with self._lock:
            now = time.monotonic()
            freeing = now < self._freed + FREEING_S
            self._brim = max(self._held - self._coming[key], int(freeing))
            self._brim_until = self._freed + FREEING_S if freeing else math.inf
            return bool(self._brim)

    def forget(self, keys: Iterable[str]) -> None:
        """Rows were removed."""
        with self._lock:
            self._held -= sum(self._stored.pop(key, 0) for key in keys)
            self._brim, self._freed = 0, time.monotonic()
            self._changes += 1

    @property
    def changes(self) -> int:
        """Grows with every change; see :meth:`replace`."""
        with self._lock:
            return self._changes

    def replace(self, stored: Mapping[str, int], changes: int) -> None:
        """What the queue itself says, listed since `changes` was read; left alone where that is no longer current."""
        with self._lock:
            if changes == self._changes:
                self._stored = {key: size for key, size in stored.items() if key not in self._coming}
                self._held = sum(self._stored.values()) + sum(self._coming.values())
                if self._held < self._brim:
                    self._brim, self._freed = 0, time.monotonic()

    def _fits(self, size: int) -> bool:
        if self._brim and time.monotonic() < self._brim_until:
            return False
        return len(self._stored) + len(self._coming) < self._rows and self._held + max(size, 1) <= self._size


def mib(size: int) -> str:
    """Bytes as MiB, for people."""
    return f"{size / (1 << 20):.1f}"
