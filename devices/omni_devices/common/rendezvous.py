"""Which ranks are there: answered by the store that ranks meet at, so that a missing one is named, not waited for.

Works with every backend, also those whose own barrier waits for ever or cannot say for whom it waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

_FIRST_POLL_S, _LAST_POLL_S = 0.002, 0.25


def meet(store: dist.Store, event: str, rank: int, ranks: Sequence[int], timeout_s: float) -> list[int]:
    """Announce `rank`, and wait for the others of `ranks` to do so.

    The n-th meeting of one rank meets the n-th of the others; the count is kept in the store.

    Args:
        event: names what ranks meet for.

    Returns:
        Ranks that have not come within `timeout_s` seconds.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    number = store.add(f"omni_portable/{event}/count/{rank}", 1)
    store.set(_key(event, number, rank), "here")
    return absent(store, event, number, ranks, timeout_s)


def absent(store: dist.Store, event: str, number: int, ranks: Sequence[int], timeout_s: float) -> list[int]:
    """Those of `ranks` that have not announced themselves for the `number`-th meeting when the time is over."""
    deadline, pause = time.monotonic() + timeout_s, _FIRST_POLL_S
    keys = {rank: _key(event, number, rank) for rank in ranks}
    while not store.check(list(keys.values())):
        if time.monotonic() >= deadline:
            return [rank for rank, key in keys.items() if not store.check([key])]
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, _LAST_POLL_S)
    return []


def named(ranks: Sequence[int]) -> str:
    """'rank 1', 'ranks 1, 2, 5'; long lists are cut."""
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _key(event: str, number: int, rank: int) -> str:
    return f"omni_portable/{event}/{number}/{rank}"
