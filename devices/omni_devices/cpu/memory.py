"""Host memory of this process: statistics, trimming, and pools that sleep."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from omni_devices.cpu import host
from omni_portable.contracts.device import MemoryStats

if TYPE_CHECKING:
    from omni_devices.cpu.sleep import HostSleepPool


class HostMemory:
    """The memory manager of the 'cpu' device."""

    def stats(self) -> MemoryStats:
        """Total and free are cut to control-group limits; used and peak are this process's resident set.

        Raises:
            DeviceError: no /proc to read.
        """
        return MemoryStats(
            total=host.total_memory(), free=host.free_memory(), used=host.resident(), peak=host.peak_resident()
        )

    def trim(self) -> int:
        """Return the C library's free pages to the system; the drop of the resident set in bytes, as measured."""
        before = host.resident()
        trim_heap()
        return max(0, before - host.resident())

    def pool(self, name: str) -> HostSleepPool:
        """A new, empty pool; `name` is for messages."""
        from omni_devices.cpu.sleep import HostSleepPool

        return HostSleepPool(name)


def trim_heap() -> None:
    """Ask glibc to give back free pages anywhere in its heaps; other C libraries give theirs back by themselves."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
