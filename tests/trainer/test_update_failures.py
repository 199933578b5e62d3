"""One of several replicas that does not take new weights, seen from the trainer: it stops, or sends them again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from omni_backends.dataplane.local import LocalDataPlane
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.models.weights import checksums, make_stream
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.rollout.router import Router
from omni_portable.trainer.consistency import SyncProof
from omni_portable.trainer.modes.base import Server
from omni_portable.trainer.modes.sync import SyncTurns
from tests.rollout.router_fakes import Replica
from tests.support.requests import make_group

START = 3


class Actor:
    """Weights of one tensor."""

    def __init__(self) -> None:
        self.tensors = {"w": torch.full((3,), 1.0)}

    def weights(self, policy: str = "current") -> Any:
        return make_stream("full", list(self.tensors.items()), None)

    def weights_checksum(self, policy: str = "current") -> dict[str, str]:
        return checksums(self.tensors.items())


class Moody(Replica):
    """Fails the first `failures` of its updates, in the stage that `where` names: 'stage' or 'apply'."""

    def __init__(self, label: str, where: str, failures: int) -> None:
        super().__init__(label)
        self.where, self.failures = where, failures

    def stage_weights(self, given: Any, version: int) -> Any:
        self.refuse = ""
        if self.failures:
            self.failures -= 1
            self.refuse = self.where
        return super().stage_weights(given, version)


class Bench:
    """A run in mode sync with two replicas, the second of which is moody."""

    def __init__(self, where: str, failures: int, attempts: int) -> None:
        self.steady, self.moody = Replica("rollout-0"), Moody("rollout-1", where, 0)
        self.router = Router({"rollout-0": self.steady, "rollout-1": self.moody})
        self.actor, self.buffer = Actor(), ReplayBuffer(LocalDataPlane(), max_staleness=1)
        proof = SyncProof(self.actor, self.router, probe=None)  # type: ignore[arg-type]
        self.server = Server(
            self.actor,  # type: ignore[arg-type]
            self.router,
            proof,
            self.buffer,
            START,
            attempts=attempts,
        )
        self.failures = failures

    async def run(self) -> None:
        turns = SyncTurns(self._produce, self.server)
        await turns.start()
        self.buffer.add(make_group("g", 0, [START]))
        await turns.before_update()
        self.actor.tensors["w"] = torch.full((3,), 7.0)
        self.moody.failures = self.failures
        await turns.publish(1)

    async def _produce(self, step: int) -> int:
        return 0

    @property
    def held(self) -> list[float]:
        return [replica.tensors["w"][0].item() for replica in (self.steady, self.moody)]

    @property
    def states(self) -> list[str]:
        return [replica.lifecycle.state.value for replica in (self.steady, self.moody)]


CAUSES = {"stage": "the tensor 'w' arrived with checksum 1, announced was 2", "apply": "applying failed at 'w'"}


@pytest.mark.parametrize("where", ["stage", "apply"])
def test_the_run_stops_and_says_which_replica_and_tensor_and_why(where: str) -> None:
    bench = Bench(where, failures=1, attempts=1)
    with pytest.raises(WeightSyncError) as caught:
        asyncio.run(bench.run())
    assert caught.value.problem == f"rollout replica 'rollout-1': {CAUSES[where]}"
    assert bench.states == ["paused", "paused"], "neither draws from a policy that not all hold"
    assert bench.held == [1.0, 1.0]
    assert [replica.lifecycle.policy_version for replica in (bench.steady, bench.moody)] == [START] * 2
    assert bench.server.version == START


@pytest.mark.parametrize("where", ["stage", "apply"])
def test_the_weights_are_sent_again_as_often_as_configured(where: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(where, failures=2, attempts=3)
    asyncio.run(bench.run())
    assert bench.states == ["running", "running"]
    assert bench.held == [7.0, 7.0]
    assert [replica.lifecycle.policy_version for replica in (bench.steady, bench.moody)] == [START + 3] * 2
    assert bench.buffer.available(START + 3) == 1, "versions that nothing was drawn from make nothing staler"
    said = [record.getMessage() for record in caplog.records if record.name == "omni_portable.trainer.modes.base"]
    assert len(said) == 2
    assert all(f"rollout replica 'rollout-1': {CAUSES[where]}" in message for message in said)


def test_it_stops_when_the_attempts_are_used_up() -> None:
    bench = Bench("apply", failures=2, attempts=2)
    with pytest.raises(WeightSyncError, match="rollout replica 'rollout-1': applying failed at 'w'"):
        asyncio.run(bench.run())
    assert bench.states == ["paused", "paused"]
