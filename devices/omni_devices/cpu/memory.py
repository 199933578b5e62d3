"""Host memory of this process: statistics, trimming, and pools that sleep."""

from __future__ import annotations

from typing import NoReturn

from omni_devices.cpu import host
from omni_devices.cpu.heap import trim_heap
from omni_portable.contracts.device import MemoryStats, SleepPool
from omni_portable.contracts.errors import DeviceError


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

    def pool(self, name: str) -> SleepPool:
        """A new, empty pool; `name` is for messages. Its copies go to the temporary folder (TMPDIR)."""
        from omni_devices.common import sleep as common
        from omni_devices.cpu.sleep import DiskBacking

        return common.SleepPool(name, DiskBacking())

    def engine_pool(self) -> NoReturn:
        """Engines that run on the CPU have no allocator whose memory could be unmapped in place.

        Raises:
            DeviceError: always; vLLM's CPU worker takes its sleep call and keeps all memory.
        """
        raise DeviceError(
            "device 'cpu' has no engine allocator that sleeps: an engine with one of its own (vLLM's CPU build) keeps "
            "its memory when it is asked to sleep",
            remedy="use rollout.engine=native, which sleeps through the device's own pool (rollout.sleep_level=1 or "
            "2), or set rollout.sleep_level=0",
        )
