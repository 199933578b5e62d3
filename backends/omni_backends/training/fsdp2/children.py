"""Ranks as children of this process: a pipe and shared memory to each, one machine."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from omni_backends.training.fsdp2.channel import Channel
from omni_backends.training.fsdp2.failure import how_it_ended
from omni_backends.training.fsdp2.group import GoneError
from omni_backends.training.fsdp2.process import RankSpec, rank_main
from omni_portable.contracts.ranks import RankPlace


class Children:
    """Implements `group.Group`.

    Args:
        engine: name, for the names of the processes.
        spec: what each rank is built from.
        count: processes.
    """

    def __init__(self, engine: str, spec: RankSpec, count: int) -> None:
        folder = tempfile.mkdtemp(prefix="omni-portable-ranks-")
        store = f"file://{Path(folder) / 'store'}"
        context = multiprocessing.get_context("spawn")
        self._channels: list[Channel] = []
        self._processes: list[BaseProcess] = []
        self._closer = weakref.finalize(self, _stop, self._processes, self._channels, folder)
        for rank in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=rank_main,
                args=(spec, RankPlace(rank, count, store, device_index=rank, neighbours=count), theirs),
                name=f"{engine}-rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._channels.append(Channel(mine))
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def describe(self, rank: int) -> str:
        return f"pid {self._processes[rank].pid}"

    def send(self, rank: int, message: object) -> None:
        try:
            self._channels[rank].send(message)
        except OSError:
            raise self._gone(rank) from None

    def wait(self, ranks: Sequence[int], timeout_s: float | None) -> list[int]:
        ready = wait([self._channels[rank].connection for rank in ranks], timeout_s)
        return [rank for rank in ranks if self._channels[rank].connection in ready]

    def receive(self, rank: int) -> Any:
        try:
            return self._channels[rank].receive()
        except (EOFError, OSError):
            raise self._gone(rank) from None

    def finish(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        self._closer()

    def _gone(self, rank: int) -> GoneError:
        self._processes[rank].join(1.0)
        return GoneError(how_it_ended(self._processes[rank].exitcode))


def _stop(processes: list[BaseProcess], channels: list[Channel], folder: str) -> None:
    """End what still runs, now; a function of its own so that a finalizer may call it."""
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
    for channel in channels:
        channel.close()
    shutil.rmtree(folder, ignore_errors=True)
