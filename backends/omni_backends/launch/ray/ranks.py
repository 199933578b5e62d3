"""Ranks of a train engine as Ray actors: how they are started and reached from the engine's driver."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError

from omni_backends.launch.ray.tensors import Bundle, reference_of
from omni_backends.launch.ray.worker import Worker
from omni_portable.contracts.errors import ClusterError
from omni_portable.contracts.ranks import RankPlace
from omni_portable.rollout.distant import Rows

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartedRank:
    """One process.

    Args:
        worker: its handle.
        shared: it sees the run directory; True where there is none.
        facts: as `RankHost.here` says them.
    """

    worker: Worker
    shared: bool
    facts: dict[str, Any]


Start = Callable[[int], list[StartedRank]]


class RankActors:
    """Implements `contracts.ranks.RankProcesses`; every answer is a reference that Ray resolves.

    Args:
        started: by rank.
        bound: Ray shows every process its own devices only.
    """

    def __init__(self, started: Sequence[StartedRank], bound: bool) -> None:
        self._workers = [one.worker for one in started]
        self._facts = [one.facts for one in started]
        self._places = places(self._facts, bound)
        log.info("%d ranks meet at %s", len(self._places), self._places[0].init_method)
        self._answers: dict[int, list[Any]] = {}

    @property
    def pids(self) -> Sequence[int]:
        return [int(facts["pid"]) for facts in self._facts]

    def describe(self, rank: int) -> str:
        facts = self._facts[rank]
        return f"'{self._workers[rank].label}', pid {facts['pid']} on {facts['address']}"

    def start(self, entry: str, blob: bytes) -> None:
        shared = ray.put(blob)
        for rank, worker in enumerate(self._workers):
            self._answers[rank] = [worker.actor.begin.remote(entry, shared, asdict(self._places[rank]))]

    def send(self, rank: int, message: bytes, sources: Sequence[object] = ()) -> None:
        """As `contracts.ranks.RankProcesses.send`; tensors in the object store go by reference."""
        worker = self._workers[rank]
        command = worker.actor.command.options(num_returns=2)
        try:
            self._answers[rank] = command.remote(message, *map(reference_of, sources))
        except RayError as error:
            raise worker.explained(error) from error

    def wait(self, ranks: Sequence[int], timeout_s: float | None) -> list[int]:
        """As `contracts.ranks.RankProcesses.wait`; Ray says of a process that ended within about a second, of a machine
        once it has missed its health checks."""
        asked = {self._answers[rank][0]: rank for rank in ranks}
        if not ray.wait(list(asked), timeout=timeout_s)[0]:
            return []
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        return sorted(asked[reference] for reference in ready)

    def receive(self, rank: int) -> tuple[bytes, object]:
        worker = self._workers[rank]
        answered, *beside = self._answers[rank]
        self._answers[rank] = [answered]  # what is beside it is freed once nobody else holds it
        try:
            answer: bytes = ray.get(answered)
        except ObjectLostError as error:
            raise ClusterError(
                f"tensors of samples for '{worker.label}' are gone with the machine that drew them: {error}",
                remedy="continue the run from its last checkpoint (trainer.resume=auto), which draws them again",
            ) from error
        except RayError as error:
            raise worker.explained(error) from error
        return answer, Bundle(beside[0], worker.bring) if beside else Rows([])

    def close(self) -> None:
        if not ray.is_initialized():
            return
        for worker in self._workers:
            ray.kill(worker.actor)


def places(facts: Sequence[dict[str, Any]], bound: bool) -> list[RankPlace]:
    """Where each rank stands: they meet at the address that the first one's machine has in the cluster.

    Args:
        facts: by rank, as `RankHost.here` says them.
        bound: each sees its own device only; else they take the machine's devices in turn.
    """
    first, neighbours = facts[0], Counter(one["address"] for one in facts)
    host = f"[{first['address']}]" if ":" in first["address"] else first["address"]
    before: Counter[str] = Counter()
    found = []
    for rank, one in enumerate(facts):
        address = one["address"]
        found.append(
            RankPlace(
                rank,
                len(facts),
                f"tcp://{host}:{first['port']}",
                device_index=0 if bound else before[address],
                neighbours=neighbours[address],
                interface=one["interface"],
            )
        )
        before[address] += 1
    return found


@dataclass(frozen=True)
class RankPool:
    """Implements `contracts.ranks.RankSpawner`.

    Args:
        start: starts a number of processes and waits until each answers.
        bound: see :class:`RankActors`.
        bucket_bytes: see `contracts.ranks.RankSpawner`.
    """

    start: Start
    bound: bool
    bucket_bytes: int

    def __call__(self, engine: str, count: int) -> RankActors:
        started = self.start(count)
        actors = RankActors(started, self.bound)
        blind = [actors.describe(rank) for rank, one in enumerate(started) if not one.shared]
        if blind:
            actors.close()
            raise ClusterError(
                f"{len(blind)} of {count} ranks of train engine '{engine}' do not see the run directory (first "
                f"{blind[0]}), into which every rank writes its part of a checkpoint",
                remedy="put trainer.run_dir on storage that all machines share under the same path",
            )
        return actors
