"""The CPU's part of sleeping: the host is the device, so copies go to disk and freed bytes leave the resident set."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from omni_devices.common.sleep import MIN_FREED
from omni_devices.common.storages import Slot
from omni_devices.cpu import host, residency
from omni_devices.cpu.heap import trim_heap
from omni_devices.cpu.hostcopy import HostCopy

LARGE_STORAGE = 1 << 20
"""Storages from this size on are expected to be freed page by page; smaller ones share pages with what stays."""
ENFORCED_BYTES = 32 << 20
"""Below this sum of large storages the freed bytes are measured but not judged: other allocations of the process, such
as thread-local heaps, move the resident set by as much."""


class DiskBacking:
    """Implements :class:`omni_devices.common.sleep.Backing` with unlinked temporary files.

    Args:
        folder: where copies go; the system's temporary folder (TMPDIR) where None.
    """

    device_type = "cpu"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @property
    def room(self) -> tuple[str, str]:
        """The folder, and how to choose another."""
        remedy = "make room there, set TMPDIR to another folder on disk, or use sleep level 2"
        return f"in {self._place()}", remedy

    def check(self) -> None:
        """Nothing to refuse before the copy's folder is looked at."""

    def trim(self) -> None:
        """Give the C library's free pages back."""
        trim_heap()

    def held(self) -> int:
        """Bytes of the resident set."""
        return host.resident()

    def expected(self, slots: Sequence[Slot]) -> int:
        """Bytes of the large storages that are in memory now."""
        return residency.present_bytes([slot.address_range for slot in slots if slot.nbytes >= LARGE_STORAGE])

    def freed(self, before: int, expected: int) -> int:
        """The drop of the resident set; the kernel takes pages away at once."""
        return before - host.resident()

    def shortfall(self, freed: int, expected: int) -> str:
        """Judges sums of 32 MiB and more."""
        if expected < ENFORCED_BYTES or freed >= MIN_FREED * expected:
            return ""
        if preload := os.environ.get("LD_PRELOAD", ""):
            return f"the preloaded allocator ({preload}) keeps freed memory: unset LD_PRELOAD"
        return "look for other threads that allocate meanwhile, or an allocator that keeps freed memory"

    def copy(self, slots: Sequence[Slot]) -> HostCopy:
        """A file with the slots' contents."""
        return HostCopy(slots, self._place())

    def _place(self) -> Path:
        return self._folder or Path(tempfile.gettempdir())
