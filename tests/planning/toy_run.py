"""A run of the real modes, rollout stage, gate and buffer whose engine and actor only take their time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from omni_backends.dataplane.local import LocalDataPlane
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.rollout import RolloutResult
from omni_portable.planning.placement.profile import Placement
from omni_portable.planning.simulate.roles import SimulatedSync
from omni_portable.planning.simulate.workload import Workload
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.modes.base import Server, Turns
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.lead import Lead
from omni_portable.trainer.modes.separate import SeparateTurns
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.modes.sync import SyncTurns
from omni_portable.trainer.rollout_stage import RolloutStage
from omni_portable.trainer.timing import StageClock
from tests.support.requests import make_group, make_request, make_trajectory
from tests.trainer.trainer_fakes import RecordingActor, RecordingEngine


def toy_work(mode: str, staleness: int, rounds: int, sample_s: float, train_s: float) -> Workload:
    """4 prompts x 2 samples in calls of 2, on 2 replicas: 2 waves of calls."""
    placement = Placement(mode, 3, 2, 1, 4, staleness, rounds)
    return Workload(placement, sample_s, train_s, sync_s=0.25, samples=2, piece=2)


class ToyRun:
    """On whatever event loop it is started: one of the wall clock, or a virtual one.

    Args:
        spend: takes so many seconds of the calling thread.
    """

    def __init__(self, work: Workload, steps: int, spend: Callable[[float], None]) -> None:
        self.work, self.steps, self.spend = work, steps, spend
        self.trace: list[tuple[float, str, int]] = []
        self.ends: list[float] = []
        self.timings: list[dict[str, float]] = []
        self.clock = StageClock()
        placed = work.placement
        interrupt = placed.mode == "fully_async"
        engine, gate = SleepingEngine(work), Gate()
        self.stage = RolloutStage(
            engine,  # type: ignore[arg-type]
            piece_size=work.piece,
            slots=Slots(placed.replicas),
            gate=gate,
            resubmit=interrupt,
        )
        self.buffer = ReplayBuffer(LocalDataPlane(), placed.max_staleness)
        server = Server(RecordingActor(), engine, SimulatedSync(work.sync_s), self.buffer, 0)  # type: ignore[arg-type]
        lead = Lead(placed.max_staleness, placed.sync_rounds, 1)
        self.turns: Turns = (
            SyncTurns(self.produce, server)
            if placed.mode == "sync"
            else SeparateTurns(self.produce, server, self.buffer, gate, lead, 0, steps, interrupt=interrupt)
        )

    def log(self, event: str, number: int) -> None:
        self.trace.append((asyncio.get_running_loop().time(), event, number))

    async def produce(self, step: int) -> int:
        self.log("submitted", step)
        prompts, samples = self.work.placement.prompts, self.work.samples
        requests = [dataclasses.replace(make_request(i), request_id=f"{step}-{i}") for i in range(prompts * samples)]
        with self.clock.measure("rollout"):
            drawn = await self.stage.run(requests)
        self.log("stored", step)
        versions = [trajectory.policy_version for trajectory in drawn]
        for index in range(prompts):
            own = versions[index * samples : (index + 1) * samples]
            self.buffer.add(make_group(f"{step}-{index}", step * 100 + index, own))
        return prompts

    async def run(self) -> dict[int, int]:
        """Train all steps; groups trained on by staleness."""
        staleness: dict[int, int] = {}
        await self.turns.start()
        for step in range(1, self.steps + 1):
            with self.clock.measure("step"):
                await self._step(step, staleness)
            self.ends.append(asyncio.get_running_loop().time())
            self.timings.append(self.clock.take())
        await self.turns.close()
        return dict(sorted(staleness.items()))

    async def _step(self, step: int, staleness: dict[int, int]) -> None:
        count = await self.turns.fill(step)
        version = self.turns.version
        for group in self.buffer.sample(count, version):
            age = version - group.policy_version
            staleness[age] = staleness.get(age, 0) + 1
        await self.turns.before_update()
        with self.clock.measure("update"):
            await self.turns.carry_out(lambda: self.spend(self.work.train_s))
        self.log("trained", step)
        with self.clock.measure("sync"):
            await self.turns.publish(1)
        if self.turns.version > version:
            self.log("published", self.turns.version)


class SleepingEngine(RecordingEngine):
    """A request takes `sample_s`; those of one call follow each other. Pausing aborts what is out."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.work = work
        self.out: set[asyncio.Future[None]] = set()

    async def generate(self, requests: Sequence) -> RolloutResult:
        version, loop = self.version, asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self.out.add(done)
        timer = loop.call_later(self.work.sample_s * len(requests), lambda: done.done() or done.set_result(None))
        try:
            await done
        except asyncio.CancelledError:
            return RolloutResult([], tuple(r.request_id for r in requests))
        finally:
            timer.cancel()
            self.out.discard(done)
        return RolloutResult([make_trajectory(r, version) for r in requests])

    def pause(self) -> Ack:
        for done in list(self.out):
            done.cancel()
        return super().pause()
