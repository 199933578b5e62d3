"""Freed memory, as the driver reports it; some drivers report it a little late."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.05


def freed_since(used: Callable[[], int], before: int, wanted: float, wait_s: float) -> int:
    """How far `used()` has fallen below `before`, as soon as that is `wanted` bytes, or after `wait_s` seconds.

    Args:
        used: bytes in use now, as the driver counts them.
        before: bytes in use before memory was released.
    """
    deadline = time.monotonic() + wait_s
    freed = before - used()
    while freed < wanted and time.monotonic() < deadline:
        time.sleep(POLL_S)
        freed = before - used()
    return freed
