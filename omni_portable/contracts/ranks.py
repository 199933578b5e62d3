"""The seam between a train engine of several processes and whoever places them: where its ranks run.

An engine starts its ranks as its own children unless `EngineSetup.spawn` says otherwise; a launcher that spans machines
puts its spawner there. What ranks are told and answer are bytes of the engine's making; a spawner only carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True)
class RankPlace:
    """Where one process stands among those that train together.

    Args:
        rank / count: its number, and how many there are.
        init_method: where they meet, as `Collectives.init_process_group` takes it.
        device_index: of its device among those that the process sees.
        neighbours: ranks on its machine, itself included.
        interface: network interface between the machines of the ranks; '' leaves what the device's environment says.
    """

    rank: int
    count: int
    init_method: str
    device_index: int = 0
    neighbours: int = 1
    interface: str = ""


Parts: TypeAlias = "Sequence[memoryview]"
"""What another process holds of one sample, or of several: rows of bytes that nobody writes to."""

Serve = Callable[[bytes, Sequence[Parts]], "tuple[bytes, Parts]"]
"""Answers one message of the engine's driver, to which further parts may belong; of the answer, large tensors may be
parts beside it. What it raises is an error of the program."""

RankEntry = Callable[[bytes, RankPlace], tuple[bytes, Serve | None]]
"""What an engine names as 'module:function' for its processes to run first: (what the driver sent, place) -> (first
answer, what answers all further messages; None where the rank could not be built)."""


class RankProcesses(Protocol):
    """Processes that were started, by rank. Each gives one answer to `start`, then one to every message, in order."""

    @property
    def pids(self) -> Sequence[int]:
        """Process ids by rank, each on its machine."""
        ...

    def describe(self, rank: int) -> str:
        """Where it runs, for messages: 'pid 17 on 10.0.0.3'."""
        ...

    def start(self, entry: str, blob: bytes) -> None:
        """Have every process run the entry ('module:function', a `RankEntry`)."""
        ...

    def send(self, rank: int, message: bytes, sources: Sequence[object] = ()) -> None:
        """
        Args:
            sources: of distant tensors that the message leaves out (`rollout.distant.TensorSource`), in the order of
                the parts that the process gets with it.

        Raises:
            WorkerLostError: the process is gone.
        """
        ...

    def wait(self, ranks: Sequence[int], timeout_s: float | None) -> list[int]:
        """Those of `ranks` whose answer is there, or that are gone; at least one unless the time is over."""
        ...

    def receive(self, rank: int) -> tuple[bytes, object]:
        """The answer, and where the parts beside it are (a `rollout.distant.TensorSource`), which stay there as long as
        anybody holds that; waits for it.

        Raises:
            WorkerLostError: the process is gone.
            OmniPortableError: the answer cannot be had.
        """
        ...

    def close(self) -> None:
        """End all processes, now; safe to call twice."""
        ...


class RankSpawner(Protocol):
    """Starts the processes of an engine."""

    @property
    def bucket_bytes(self) -> int:
        """Weights leave the processes in pieces of at most this size (a larger tensor is a piece of its own)."""
        ...

    def __call__(self, engine: str, count: int) -> RankProcesses:
        """
        Args:
            engine: name, for messages.
            count: processes.

        Raises:
            ClusterError: they cannot be placed, or cannot work together.
            WorkerLostError: one ended while it started.
        """
        ...
