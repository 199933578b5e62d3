"""Running ahead: what may be submitted when, what new weights wait for, and how errors come through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_backends.dataplane.local import LocalDataPlane
from omni_portable.contracts.errors import RewardError
from omni_portable.contracts.rollout import RolloutResult
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.consistency import SyncProof
from omni_portable.trainer.modes.base import Server
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.lead import Lead
from omni_portable.trainer.modes.separate import SeparateTurns
from omni_portable.trainer.rollout_stage import RolloutStage
from tests.support.requests import make_group, make_request, make_trajectory
from tests.trainer.trainer_fakes import RecordingActor, RecordingEngine


@given(st.integers(0, 5), st.integers(1, 12), st.integers(1, 4), st.integers(1, 40))
def test_a_round_that_is_allowed_is_never_staler_than_its_bound(staleness, interval, steps, rounds):
    """Against a simulation that submits whenever it may."""
    lead = Lead(staleness, interval, steps)
    version, pending, submitted, drawn_at = 0, 0, 0, {}
    for trained in range(rounds):
        while submitted < rounds and lead.allows(submitted - trained, pending):
            drawn_at[submitted] = version
            submitted += 1
        assert trained in drawn_at, "the next round must always be allowed"
        assert version - drawn_at[trained] <= staleness
        pending += steps
        if pending >= interval:
            version, pending = version + 1, 0


def test_with_staleness_0_and_a_publication_per_round_nothing_runs_ahead():
    lead = Lead(0, 1, 1)
    assert lead.allows(0)
    assert not lead.allows(1)
    assert [ahead for ahead in range(9) if Lead(1, 4, 1).allows(ahead)] == list(range(8))


class Bench:
    """A separate mode over recorded engines; rounds finish when they are told to."""

    def __init__(self, staleness: int = 1, interval: int = 1, total: int = 5, interrupt: bool = False) -> None:
        self.actor, self.engine, self.gate = RecordingActor(), RecordingEngine(), Gate()
        self.buffer = ReplayBuffer(LocalDataPlane(), staleness)
        self.started: list[int] = []
        self.release: dict[int, asyncio.Event] = {}
        proof = SyncProof(self.actor, self.engine, probe=None)  # type: ignore[arg-type]
        self.server = Server(self.actor, self.engine, proof, self.buffer, 1)  # type: ignore[arg-type]
        self.turns = SeparateTurns(
            self.produce,
            self.server,
            self.buffer,
            self.gate,
            Lead(staleness, interval, 1),
            0,
            total,
            interrupt=interrupt,
        )

    async def produce(self, step: int) -> int:
        self.started.append(step)
        event = self.release.setdefault(step, asyncio.Event())
        async with self.gate.passing():
            version = self.turns.version
            await event.wait()
        self.buffer.add(make_group(f"g{step}", step, [version]))
        return 1

    def finish(self, step: int) -> None:
        self.release.setdefault(step, asyncio.Event()).set()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_rounds_run_ahead_as_far_as_their_staleness_allows():
    async def run() -> None:
        bench = Bench(staleness=2)
        await bench.turns.start()
        await settle()
        assert bench.started == [1, 2, 3]
        for step in (1, 2, 3):
            bench.finish(step)
        assert await bench.turns.fill(1) == 1
        await bench.turns.publish(1)
        await settle()
        assert bench.started == [1, 2, 3, 4]
        assert bench.turns.version == 2
        await bench.turns.close()

    asyncio.run(run())


def test_new_weights_wait_for_what_is_out_and_nothing_new_starts_meanwhile():
    async def run() -> None:
        bench = Bench(staleness=1)
        await bench.turns.start()
        bench.finish(1)
        await bench.turns.fill(1)
        publishing = asyncio.create_task(bench.turns.publish(1))
        await settle()
        assert bench.engine.version == 1, "round 2 is still out"
        bench.finish(2)
        await publishing
        assert bench.engine.version == 2
        assert bench.engine.calls[-4:] == ["pause", "update current v2", "resume", "checksum"]
        bench.finish(3)
        assert await bench.turns.fill(2) == 1
        await bench.turns.close()

    asyncio.run(run())


def test_weights_travel_only_once_enough_optimizer_steps_have_gathered():
    async def run() -> None:
        bench = Bench(staleness=1, interval=3, total=9)
        await bench.turns.start()
        await settle()
        assert bench.started == [1, 2, 3, 4, 5, 6], "three rounds per version"
        for step in range(1, 10):
            bench.finish(step)
        fresh = []
        for step in (1, 2, 3):
            await bench.turns.fill(step)
            fresh.append(bench.turns.fresh)
            await bench.turns.publish(1)
        assert fresh == [True, False, False]
        assert bench.turns.version == 2
        await bench.turns.close()

    asyncio.run(run())


def test_an_error_of_a_round_is_raised_where_it_is_needed_and_the_rest_is_cancelled():
    async def run() -> None:
        bench = Bench(staleness=1)

        async def broken(step: int) -> int:
            if step == 1:
                raise RewardError("no reader")
            await asyncio.Event().wait()
            return 0

        bench.turns._produce = broken
        await bench.turns.start()
        with pytest.raises(RewardError, match="no reader"):
            await bench.turns.fill(1)
        await bench.turns.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_serving_an_average_makes_no_group_stale():
    async def run() -> None:
        bench = Bench(staleness=1)
        await bench.turns.start()
        for step in (1, 2):
            bench.finish(step)
        await settle()
        async with bench.turns.serving("ema"):
            assert bench.engine.held == -1.0
        assert bench.turns.version == 3
        assert bench.buffer.available(3) == 2
        await bench.turns.close()

    asyncio.run(run())


class Interruptible(RecordingEngine):
    """Requests are out until the engine is paused (then aborted) or `answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.stop, self.answer = asyncio.Event(), asyncio.Event()

    def pause(self):
        self.stop.set()
        return super().pause()

    def resume(self):
        self.stop.clear()
        return super().resume()

    async def generate(self, requests: Sequence) -> RolloutResult:
        waits = [asyncio.create_task(event.wait()) for event in (self.stop, self.answer)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if not self.answer.is_set():
            return RolloutResult(
                [make_trajectory(requests[0], self.version)], tuple(r.request_id for r in requests[1:])
            )
        return RolloutResult([make_trajectory(r, self.version) for r in requests])


def test_interrupted_requests_are_drawn_again_under_the_new_version_and_finished_ones_kept():
    async def run() -> None:
        bench = Bench(staleness=1, interrupt=True)
        engine = bench.engine = bench.server.engine = Interruptible()  # type: ignore[assignment]
        bench.server.proof = SyncProof(bench.actor, engine, probe=None)  # type: ignore[arg-type]
        stage = RolloutStage(engine, gate=bench.gate, resubmit=True)  # type: ignore[arg-type]
        drawing = asyncio.create_task(stage.run([make_request(i) for i in range(3)]))
        await bench.server.start()
        await settle()
        await bench.turns.publish(1)
        engine.answer.set()
        assert [t.policy_version for t in await drawing] == [1, 2, 2]
        await bench.turns.close()

    asyncio.run(run())
