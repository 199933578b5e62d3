"""What the real modes, server and buffer are given in place of engines, weights and tensors."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from omni_portable.contracts.dataplane import GroupTag, ScoredGroup
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.planning.simulate.clock import VirtualLoop
from omni_portable.planning.simulate.cluster import Cluster
from omni_portable.trainer.modes.gate import Gate


class SimulatedGate(Gate):
    """The cluster's gate behind the interface that modes use; pieces pass it inside the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def close(self) -> None:
        self._cluster.close()

    def open(self) -> None:
        self._cluster.open()

    async def drained(self) -> None:
        await self._cluster.drained()


@dataclass
class SimulatedEngine:
    """Lifecycle calls as a `RolloutEngine` answers them.

    Args:
        switch_s: seconds that sleeping and waking take together.
    """

    loop: VirtualLoop
    cluster: Cluster
    switch_s: float
    name: str = "simulated"

    def pause(self) -> Ack:
        self.cluster.interrupt()
        return self._ack("pause")

    def resume(self) -> Ack:
        return self._ack("resume")

    def sleep(self, level: int = 1) -> Ack:
        self.loop.spend(self.switch_s / 2)
        return self._ack("sleep")

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        self.loop.spend(self.switch_s / 2)
        return self._ack("wake")

    def update_weights(self, stream: object, version: int) -> Ack:
        self.cluster.version = version
        return self._ack("update_weights")

    def _ack(self, operation: str) -> Ack:
        return Ack(operation, self.cluster.version)


class SimulatedActor:
    """Has no weights."""

    def weights(self, policy: str) -> tuple[()]:
        return ()


@dataclass
class SimulatedSync:
    """The seconds of a publication pass where a real run proves that the weights arrived: the gate is still closed."""

    seconds: float
    count: int = 0

    async def check(self, policy: str) -> None:
        self.count += 1
        await asyncio.sleep(self.seconds)


@dataclass(frozen=True)
class Drawn:
    """A trajectory of which nothing is known but who made it."""

    policy_version: int


def light_group(group_id: str, submission: int, version: int, samples: int) -> ScoredGroup:
    """A group as the buffer wants it, without tensors; groups of one version share their lists."""
    return ScoredGroup(group_id, submission, *_content(version, samples))


@functools.lru_cache(maxsize=256)
def _content(version: int, samples: int) -> tuple[list[AnyTrajectory], list[float]]:
    return [cast(AnyTrajectory, Drawn(version))] * samples, [0.0] * samples


class LightPlane:
    """A data plane that keeps the groups themselves."""

    name = "light"

    def __init__(self) -> None:
        self._groups: dict[str, ScoredGroup] = {}

    def put(self, group: ScoredGroup) -> None:
        self._groups[group.group_id] = group

    def tags(self) -> list[GroupTag]:
        return [
            GroupTag(group.group_id, group.submission, group.policy_version, len(group.trajectories))
            for group in self._groups.values()
        ]

    def take(self, group_ids: Sequence[str], *_: Any, **__: Any) -> list[ScoredGroup]:
        return [self._groups.pop(group_id) for group_id in group_ids]

    def drop(self, group_ids: Sequence[str]) -> None:
        for group_id in group_ids:
            del self._groups[group_id]

    def __len__(self) -> int:
        return len(self._groups)
