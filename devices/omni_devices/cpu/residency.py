"""How many bytes of given address ranges are in memory: what a release may be expected to free."""

from __future__ import annotations

import os
from collections.abc import Sequence

from omni_devices.cpu.host import PROC
from omni_portable.contracts.errors import DeviceError

_PRESENT = 0x80  # bit 63 of a little-endian page entry, as seen in its last byte
_ENTRY = 8


def present_bytes(ranges: Sequence[tuple[int, int]]) -> int:
    """Bytes of the ranges (address, size) whose pages are in memory, from /proc/self/pagemap.

    Memory that was allocated but never written, or that was swapped out, or a mapped file that was never read, is not
    present; releasing it frees nothing.

    Raises:
        DeviceError: the kernel does not show the page map.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        with open(PROC / "self" / "pagemap", "rb", buffering=0) as file:
            return sum(_present(file.fileno(), start, size, page) for start, size in ranges if size)
    except OSError as error:
        raise DeviceError(
            f"cannot read /proc/self/pagemap ({error.strerror}), so freed memory cannot be judged",
            remedy="run where /proc is complete, or set rollout.sleep_level=0",
        ) from error


def _present(descriptor: int, start: int, size: int, page: int) -> int:
    first, last = start // page, (start + size - 1) // page
    entries = os.pread(descriptor, (last - first + 1) * _ENTRY, first * _ENTRY)
    flags = entries[_ENTRY - 1 :: _ENTRY]
    pages = sum(map(_PRESENT.__and__, flags)) // _PRESENT
    if not pages:
        return 0
    total = pages * page
    if flags[0] & _PRESENT:
        total -= start - first * page  # the first page's bytes before the range
    if flags[-1] & _PRESENT:
        total -= (last + 1) * page - (start + size)  # the last page's bytes behind it
    return total
