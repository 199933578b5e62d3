"""Taking turns: the order of lifecycle calls, versions, and serving an average for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from omni_backends.dataplane.local import LocalDataPlane
from omni_portable.contracts.errors import RewardError, WeightSyncError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.consistency import SyncProof
from omni_portable.trainer.modes.base import Server, push_weights
from omni_portable.trainer.modes.sync import SyncTurns
from tests.support.requests import make_group, make_request
from tests.trainer.trainer_fakes import RecordingActor, RecordingEngine


class SleepyActor(RecordingActor):
    """It writes down its sleep among the calls of the rollout engine, and gives its weights only while awake."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls, self.asleep = calls, False

    def sleep(self, level: int, tags: Sequence[str]) -> Ack:
        self.calls.append(f"actor sleeps {level} {','.join(tags)}")
        self.asleep = True
        return Ack("sleep", 0)

    def wake(self, tags: Sequence[str]) -> Ack:
        self.calls.append(f"actor wakes {','.join(tags)}")
        self.asleep = False
        return Ack("wake", 0)

    def weights(self, policy: str = "current") -> tuple[str, float]:
        assert not self.asleep
        return super().weights(policy)


def make_turns(sleep_level: int = 0, version: int = 3) -> tuple[SyncTurns, RecordingActor, RecordingEngine, list[int]]:
    actor, engine, produced = RecordingActor(), RecordingEngine(), []

    async def produce(step: int) -> int:
        produced.append(step)
        return 4

    proof = SyncProof(actor, engine, probe=None)  # type: ignore[arg-type]
    server = Server(actor, engine, proof, None, version, sleep_level=sleep_level)  # type: ignore[arg-type]
    return SyncTurns(produce, server), actor, engine, produced


def test_one_step_without_sleep() -> None:
    turns, actor, engine, produced = make_turns()

    async def step() -> None:
        await turns.fill(4)
        await turns.before_update()
        actor.values["current"] = 7.0
        await turns.publish(1)

    asyncio.run(step())
    assert produced == [4]
    assert engine.calls == ["pause", "update current v4", "resume", "checksum"]
    assert (engine.held, turns.version) == (7.0, 4)


@pytest.mark.parametrize("level", [1, 2])
def test_one_step_with_sleep(level: int) -> None:
    turns, _, engine, _ = make_turns(sleep_level=level)

    async def step() -> None:
        await turns.before_update()
        await turns.publish(1)

    asyncio.run(step())
    assert engine.calls == ["pause", f"sleep {level}", "wake", "update current v4", "resume", "checksum"]


def test_the_actor_sleeps_while_rollout_draws_and_wakes_when_it_has_made_room() -> None:
    turns, _, engine, produced = make_turns(sleep_level=1)
    actor = turns._server.actor = turns._server.proof._actor = SleepyActor(engine.calls)  # type: ignore[assignment]
    turns._actor_sleeps = ("weights", "optimizer")

    async def step() -> None:
        await turns.fill(4)
        assert actor.asleep
        await turns.before_update()
        assert not actor.asleep
        await turns.publish(1)
        async with turns.serving("ema"):
            assert actor.asleep

    asyncio.run(step())
    assert produced == [4]
    tags = "weights,optimizer"
    taken = ["pause", "sleep 1", f"actor wakes {tags}", "wake", "update current v4", "resume", "checksum"]
    average = ["pause", "update ema v5", "resume", "checksum", f"actor sleeps 1 {tags}", f"actor wakes {tags}"]
    again = ["pause", "update current v6", "resume", "checksum"]
    assert engine.calls == [f"actor sleeps 1 {tags}", *taken, *average, *again]
    assert not actor.asleep, "a checkpoint may be written"


def test_the_average_is_served_and_then_the_current_policy_again() -> None:
    turns, actor, engine, _ = make_turns()
    actor.values |= {"current": 7.0, "ema": 5.0}
    served = []

    async def validate() -> None:
        async with turns.serving("ema"):
            served.append(engine.held)

    asyncio.run(validate())
    assert served == [5.0]
    assert engine.held == 7.0
    expected = ["pause", "update ema v4", "resume", "checksum", "pause", "update current v5", "resume", "checksum"]
    assert engine.calls == expected
    assert turns.version == 5


def test_serving_the_current_policy_moves_nothing() -> None:
    turns, _, engine, _ = make_turns()

    async def validate() -> None:
        async with turns.serving("current"):
            pass

    asyncio.run(validate())
    assert engine.calls == []
    assert turns.version == 3


def test_the_current_policy_comes_back_when_validation_fails() -> None:
    turns, actor, engine, _ = make_turns()
    actor.values |= {"current": 7.0, "ema": 5.0}

    async def validate() -> None:
        async with turns.serving("ema"):
            raise RewardError("scorer down")

    with pytest.raises(RewardError, match="scorer down"):
        asyncio.run(validate())
    assert engine.held == 7.0
    assert engine.calls[-2:] == ["resume", "checksum"]


def test_a_refused_update_raises_and_leaves_the_engine_paused_at_its_version() -> None:
    turns, _, engine, _ = make_turns()
    engine.broken = True

    async def step() -> None:
        await turns.before_update()
        await turns.publish(1)

    with pytest.raises(WeightSyncError, match="out of memory"):
        asyncio.run(step())
    assert engine.calls == ["pause", "update current v4"], "never resumed"
    assert turns.version == 3


def test_a_failed_update_is_sent_again_as_often_as_configured_and_makes_no_group_staler() -> None:
    async def run(failures: int) -> tuple[list[str], int, int]:
        turns, actor, engine, _ = make_turns()
        buffer = turns._server.buffer = ReplayBuffer(LocalDataPlane(), max_staleness=1)
        buffer.add(make_group("g", 0, [3]))
        turns._server.attempts = 3
        update = engine.update_weights

        def failing(stream: Any, version: int) -> Ack:
            engine.broken = version < 4 + failures
            return update(stream, version)

        engine.update_weights = failing  # type: ignore[method-assign]
        actor.values["current"] = 7.0
        await turns.before_update()
        await turns.publish(1)
        return engine.calls, turns.version, buffer.available(turns.version)

    sent = ["update current v4", "update current v5", "update current v6"]
    assert asyncio.run(run(2)) == (["pause", *sent, "resume", "checksum"], 6, 1)
    with pytest.raises(WeightSyncError, match="out of memory"):
        asyncio.run(run(3))


def test_retried_updates_of_an_average_make_no_group_staler() -> None:
    async def run() -> int:
        turns, _, engine, _ = make_turns()
        buffer = turns._server.buffer = ReplayBuffer(LocalDataPlane(), max_staleness=0)
        buffer.add(make_group("g", 0, [3]))
        turns._server.attempts = 2
        update = engine.update_weights

        def failing(stream: Any, version: int) -> Ack:
            engine.broken = version == 4
            return update(stream, version)

        engine.update_weights = failing  # type: ignore[method-assign]
        async with turns.serving("ema"):
            assert turns.version == 5
        assert turns.version == 6
        return buffer.available(6)

    assert asyncio.run(run()) == 1


def test_weights_that_arrived_altered_are_found() -> None:
    turns, actor, engine, _ = make_turns()
    actor.weights = lambda policy="current": (policy, 99.0)  # type: ignore[method-assign]
    with pytest.raises(WeightSyncError, match="'w' differs"):
        asyncio.run(push_weights(actor, engine, SyncProof(actor, engine, probe=None), 4))  # type: ignore[arg-type]


def test_the_probe_runs_after_the_engine_resumed() -> None:
    actor, engine = RecordingActor(), RecordingEngine()
    proof = SyncProof(actor, engine, make_request(0))  # type: ignore[arg-type]
    asyncio.run(push_weights(actor, engine, proof, 1))  # type: ignore[arg-type]
    assert engine.calls == ["update current v1", "resume", "checksum", "generate 1"]
