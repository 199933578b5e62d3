"""Ranks in processes that a launcher placed: messages go as bytes, distant tensors by reference, both ways."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from omni_backends.training.fsdp2.group import GoneError
from omni_backends.training.fsdp2.message import from_bytes, to_bytes
from omni_backends.training.fsdp2.process import RankSpec
from omni_portable.contracts.errors import WorkerLostError
from omni_portable.contracts.ranks import RankProcesses, RankSpawner
from omni_portable.rollout.distant import Bundles, TensorSource

ENTRY = "omni_backends.training.fsdp2.process:served"


class Placed:
    """Implements `group.Group` over processes that answer bytes.

    Args:
        spawn: starts them.
        engine: name, for messages.
        spec: what each rank is built from.
        count: processes.
    """

    def __init__(self, spawn: RankSpawner, engine: str, spec: RankSpec, count: int) -> None:
        described = to_bytes(spec)
        self._processes: RankProcesses = spawn(engine, count)
        self._all = range(count)
        self._processes.start(ENTRY, described)

    @property
    def pids(self) -> list[int]:
        return list(self._processes.pids)

    def describe(self, rank: int) -> str:
        return self._processes.describe(rank)

    def send(self, rank: int, message: object) -> None:
        bundles = Bundles()
        try:
            self._processes.send(rank, to_bytes(message, bundles), bundles.sources)
        except WorkerLostError as error:
            raise GoneError(_how(error)) from error

    def wait(self, ranks: Sequence[int], timeout_s: float | None) -> list[int]:
        return self._processes.wait(ranks, timeout_s)

    def receive(self, rank: int) -> Any:
        try:
            answer, source = self._processes.receive(rank)
        except WorkerLostError as error:
            raise GoneError(_how(error)) from error
        return from_bytes(answer, source=cast(TensorSource, source))

    def finish(self, seconds: float) -> None:
        """Until all have said that they are done."""
        deadline, left = time.monotonic() + seconds, set(self._all)
        while left:
            ready = self._processes.wait(sorted(left), max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            left -= set(ready)

    def stop(self) -> None:
        self._processes.close()


def _how(error: WorkerLostError) -> str:
    return f"was lost ({error.problem}; {error.remedy})"
