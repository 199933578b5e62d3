"""Which ranks are there: answered by the store that ranks meet at, so that a missing one is named, not waited for.

Works with every backend, also those whose own barrier waits for ever or cannot say for whom it waits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import torch.distributed as dist

_FIRST_POLL_S, _LAST_POLL_S = 0.002, 0.25
_GRACE_S = 5.0
"""What torch may take beyond the limit of opening a store, before it is given up."""
_FIRST_KEY, _HEAD_BYTES = b"refcount/", 16
"""What every file of torch's begins with, and where it has been written."""


def open_store(init_method: str, rank: int, world_size: int, timeout_s: float) -> dist.Store:
    """The store that ranks meet at, opened within `timeout_s` seconds.

    Torch alone would wait for minutes, holding the interpreter, for a folder to appear or a foreign file to make sense,
    and for ever for a server that accepts and never answers.

    Raises:
        RuntimeError: it cannot be had.
        ValueError: `init_method` cannot be read.
    """
    if init_method.startswith("file://"):
        _check_file(Path(urlsplit(init_method).path))
    opened: Future[dist.Store] = Future()
    Thread(target=_open, args=(opened, init_method, rank, world_size, timeout_s), daemon=True).start()
    try:
        return opened.result(timeout_s + _GRACE_S)
    except TimeoutError as error:
        raise RuntimeError("what listens there does not answer as a store does") from error


def _open(opened: Future[dist.Store], init_method: str, rank: int, world_size: int, timeout_s: float) -> None:
    from torch.distributed.rendezvous import rendezvous

    try:
        if init_method.startswith("tcp://"):
            opened.set_result(_tcp_store(init_method, rank, world_size, timeout_s))
            return
        store, _, _ = next(rendezvous(init_method, rank, world_size, timeout=timedelta(seconds=timeout_s)))
        opened.set_result(store)
    except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
        opened.set_exception(error)


def _tcp_store(init_method: str, rank: int, world_size: int, timeout_s: float) -> dist.Store:
    """Torch's, whose server would listen at every address of its machine: here at the one that is named."""
    from torch.distributed import TCPStore

    parts = urlsplit(init_method)
    if not parts.hostname or not parts.port:
        raise ValueError(f"'{init_method}' names no host and port")
    listening = _listen(parts.hostname, parts.port) if rank == 0 else None
    return TCPStore(
        parts.hostname,
        parts.port,
        world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listening,
    )


def _listen(host: str, port: int) -> int:
    """Descriptor of a socket at one address, which belongs to whom it is given to."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
    except OSError:
        server.close()
        raise
    return server.detach()


def _check_file(path: Path) -> None:
    """Raise `RuntimeError` where torch would wait in vain; a file that another rank has just begun passes."""
    if not path.parent.is_dir():
        raise RuntimeError(f"the folder {path.parent} does not exist")
    if not path.is_file():
        return  # not there yet, or no file, which torch says
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if len(head) == _HEAD_BYTES and _FIRST_KEY not in head:
        raise RuntimeError(f"{path} exists and is no store")


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
