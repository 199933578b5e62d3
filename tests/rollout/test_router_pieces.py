"""Updates whose tensors another process holds, a few at a time: who gets what, what is fetched, and what breaks off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

from omni_portable.contracts.errors import ClusterError, WeightSyncError
from omni_portable.models.weights import make_stream
from omni_portable.rollout.blob import flat_bytes
from omni_portable.rollout.distant import DistantTensor
from omni_portable.rollout.router import Router
from tests.rollout.router_fakes import Replica


class Held:
    """A source of one tensor."""

    fetched = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def part(self, number: int) -> memoryview:
        Held.fetched += 1
        return memoryview(flat_bytes(self.tensor).numpy())


class Gathered:
    """A stream of the distant tensors 'w' and 'x', each a piece."""

    def __init__(self, value: float, breaks_at: str = "", false: str = "") -> None:
        self.tensors = {name: torch.full((3,), value) for name in "wx"}
        self.manifest = make_stream("full", self.tensors.items(), None).manifest
        self._breaks_at, self._false = breaks_at, false

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for piece in self.pieces():
            yield from piece.items()

    def pieces(self) -> Iterator[Mapping[str, torch.Tensor]]:
        for name, tensor in self.tensors.items():
            if name == self._breaks_at:
                raise ClusterError("rank 0 of 2 was lost while it had to gather")
            source = Held(tensor + 1 if name == self._false else tensor)
            yield {name: DistantTensor(tensor.shape, tensor.dtype, source, 0)}


class Unstaged:
    """An engine that receives and applies in one."""

    def __init__(self, label: str) -> None:
        self.replica = Replica(label)

    def __getattr__(self, name: str):
        if name in ("stage_weights", "commit_weights", "discard_weights"):
            raise AttributeError(name)
        return getattr(self.replica, name)


def paused(count: int = 2, **options) -> tuple[Router, list[Replica]]:
    replicas = [Replica(f"rollout-{i}") for i in range(count)]
    router = Router({replica.label: replica for replica in replicas}, **options)
    router.pause()
    return router, replicas


def held(replicas: list[Replica]) -> list[tuple[int, float, float]]:
    return [(r.lifecycle.policy_version, float(r.tensors["w"][0]), float(r.tensors["x"][0])) for r in replicas]


def test_all_replicas_take_every_piece_and_nothing_is_left_without_copies() -> None:
    router, replicas = paused(3)
    ack = router.update_weights(Gathered(2.0), 1)
    assert (ack.policy_version, held(replicas)) == (1, [(1, 2.0, 2.0)] * 3)
    assert router._crew._latest is None


def test_weights_that_cannot_be_made_fail_as_themselves_and_change_nobody() -> None:
    router, replicas = paused(3, keep=True)
    router.update_weights(Gathered(1.0), 1)
    with pytest.raises(ClusterError, match="^rank 0 of 2 was lost while it had to gather"):
        router.update_weights(Gathered(2.0, breaks_at="x"), 2)
    assert held(replicas) == [(1, 1.0, 1.0)] * 3
    assert [replica.calls[-1] for replica in replicas] == ["discard"] * 3
    assert router.update_weights(Gathered(3.0), 2).policy_version == 2
    assert held(replicas) == [(2, 3.0, 3.0)] * 3


def test_what_arrives_otherwise_than_announced_names_replica_and_tensor() -> None:
    router, replicas = paused()
    with pytest.raises(WeightSyncError, match="rollout replica 'rollout-0': the tensor 'x' arrived with checksum"):
        router.update_weights(Gathered(2.0, false="x"), 1)
    assert [replica.lifecycle.policy_version for replica in replicas] == [0, 0]


def test_a_copy_stays_where_the_tensors_are_and_a_successor_reads_it_there() -> None:
    made: list[Replica] = []

    def restart(name: str) -> Replica:
        made.append(Replica(name))
        return made[-1]

    router, replicas = paused(restart=restart, restarts=1)
    Held.fetched = 0
    router.update_weights(Gathered(2.0), 1)
    _, kept = router._crew._latest
    assert all(isinstance(tensor, DistantTensor) for tensor in kept.values())
    during_update = Held.fetched
    replicas[0].die()
    router.health()
    router._crew.complete()
    assert held(made) == [(1, 2.0, 2.0)]
    assert Held.fetched > during_update
    router.close()


def test_one_that_dies_while_it_stages_leaves_the_others_with_the_update() -> None:
    router, replicas = paused()
    replicas[1].die()
    assert router.update_weights(Gathered(2.0), 1).policy_version == 1
    assert held(replicas[:1]) == [(1, 2.0, 2.0)]


def test_where_the_last_one_dies_its_successor_gets_all_of_it() -> None:
    made: list[Replica] = []

    def restart(name: str) -> Replica:
        made.append(Replica(name))
        return made[-1]

    router, replicas = paused(1, restart=restart, restarts=1)
    replicas[0].die()
    assert router.update_weights(Gathered(2.0), 1).policy_version == 1
    assert held(made) == [(1, 2.0, 2.0)]
    router.close()


def test_an_engine_that_cannot_stage_gets_the_elements() -> None:
    staged, unstaged = Replica("rollout-0"), Unstaged("rollout-1")
    router = Router({"rollout-0": staged, "rollout-1": unstaged})
    router.pause()
    router.update_weights(Gathered(2.0), 1)
    assert held([staged, unstaged.replica]) == [(1, 2.0, 2.0)] * 2


def test_without_restarts_no_copy_is_kept() -> None:
    router, _ = paused(restart=Replica, restarts=0)
    router.update_weights(Gathered(2.0), 1)
    assert router._crew._latest is None
    router.close()
