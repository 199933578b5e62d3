"""One simulated run: the modes' own turns and the replay buffer itself, over a simulated cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import cast

from omni_portable.contracts.dataplane import DataPlane
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.training import TrainEngine
from omni_portable.planning.simulate.clock import VirtualLoop, run_virtual
from omni_portable.planning.simulate.cluster import Cluster, Meter, Part
from omni_portable.planning.simulate.lending import SimulatedLending
from omni_portable.planning.simulate.roles import (
    LightPlane,
    SimulatedActor,
    SimulatedEngine,
    SimulatedGate,
    SimulatedSync,
    light_group,
)
from omni_portable.planning.simulate.times import make_ratio
from omni_portable.planning.simulate.workload import Workload
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.modes.base import Server, Turns
from omni_portable.trainer.modes.lead import Lead
from omni_portable.trainer.modes.separate import SeparateTurns
from omni_portable.trainer.modes.sync import SyncTurns


@dataclass(frozen=True)
class Outcome:
    """What came of a run; seconds are simulated.

    Args:
        step_s: mean seconds of a step once the run is going (the first quarter of the steps is left out).
        seconds_per_prompt: the same per prompt.
        staleness: groups trained on by staleness.
        evicted_groups: that became too stale before they were trained on.
        queue_mean / queue_max: calls that waited for a replica.
        buffer_mean / buffer_max: groups that waited in the replay buffer.
        rollout_busy / train_busy: share of all seconds in which their devices worked.
        lost: share of all drawing that interruptions threw away.
        lends: times that a replica of the trainer's devices was lent to rollout.
        lent_samples: share of all samples that were given to lent replicas.
        lent_s: seconds in which replicas were lent.
        lent_busy: share of those in which they drew.
        trace: (simulated second, event, step or version) in order.
    """

    steps: int
    total_s: float
    step_s: float
    seconds_per_prompt: float
    samples_per_s: float
    staleness: dict[int, int]
    evicted_groups: int
    syncs: int
    interrupted: int
    queue_mean: float
    queue_max: int
    buffer_mean: float
    buffer_max: int
    rollout_busy: float
    train_busy: float
    lost: float
    lends: int
    lent_samples: float
    lent_s: float
    lent_busy: float
    events: int
    trace: tuple[tuple[float, str, int], ...]


def simulate(workload: Workload, steps: int, seed: int = 0) -> Outcome:
    """Run so many steps; the same arguments give the same outcome."""
    return run_virtual(lambda loop: _Run(loop, workload, steps, seed).run())


class _Run:
    """The loop of training without its arithmetic: see `trainer.loop`."""

    def __init__(self, loop: VirtualLoop, work: Workload, steps: int, seed: int) -> None:
        self._loop, self._work, self._steps = loop, work, steps
        placed = work.placement
        self._cluster = loop.world = Cluster(
            loop,
            placed.replicas,
            make_ratio(work.times, f"{seed}/rollout", work.rollout_ratios),
            score_seconds=work.score_s * work.piece,
            score_ratio=make_ratio(work.times if work.times != "measured" else "constant", f"{seed}/reward"),
            scorers=work.scorers,
            restart=work.restart,
            overlap=work.overlap,
        )
        self._train_ratio = make_ratio(work.times, f"{seed}/train", work.train_ratios)
        self._buffer = ReplayBuffer(cast(DataPlane, LightPlane()), placed.max_staleness)
        self._waiting, self._trained_s = Meter(), 0.0
        self._sync = SimulatedSync(work.sync_s)
        self._trace: list[tuple[float, str, int]] = []
        self._lending = SimulatedLending(loop, self._cluster, work) if work.loan is not None else None
        self._turns = self._make_turns()

    def _make_turns(self) -> Turns:
        placed, cluster = self._work.placement, self._cluster
        server = Server(
            cast(TrainEngine, SimulatedActor()),
            cast(RolloutEngine, SimulatedEngine(self._loop, cluster, self._work.switch_s)),
            self._sync,  # type: ignore[arg-type]
            self._buffer,
            0,
            sleep_level=1 if placed.mode == "sync" else 0,
        )
        if placed.mode == "sync":
            return SyncTurns(self._produce, server)
        lead = Lead(placed.max_staleness, sync_interval=placed.sync_rounds, steps_per_round=1)
        interrupt = placed.mode == "fully_async"
        gate = SimulatedGate(cluster)
        return SeparateTurns(
            self._produce,
            server,
            self._buffer,
            gate,
            lead,
            0,
            self._steps,
            interrupt=interrupt,
            lending=None if self._lending is None else self._lending.policy,
        )

    async def run(self) -> Outcome:
        ends, staleness, evicted = [0.0], Counter[int](), 0
        await self._turns.start()
        for step in range(1, self._steps + 1):
            count = await self._turns.fill(step)
            version = self._turns.version
            groups = self._buffer.sample(count, version)
            self._waiting.set(len(self._buffer), self._loop.now)
            staleness.update(version - group.trajectories[0].policy_version for group in groups)  # all of one version
            evicted += int(self._buffer.statistics()["replay/evicted_groups"])
            await self._turns.before_update()
            await self._turns.carry_out(self._train)
            self._trace.append((self._loop.now, "trained", step))
            before = self._sync.count
            await self._turns.publish(1)
            if self._sync.count > before:
                self._trace.append((self._loop.now, "published", self._turns.version))
            ends.append(self._loop.now)
            if self._lending is not None:
                self._lending.collect()
        await self._turns.close()
        return self._outcome(ends, dict(sorted(staleness.items())), evicted)

    def _train(self) -> None:
        seconds = self._work.train_s * self._train_ratio()
        self._trained_s += seconds
        self._loop.spend(seconds)

    async def _produce(self, step: int) -> int:
        self._trace.append((self._loop.now, "submitted", step))
        on_scored = None if self._lending is None else partial(self._lending.scored, step)
        part = self._cluster.draw(self._work.calls(step), on_scored)
        await part.done
        self._trace.append((self._loop.now, "stored", step))
        return self._store(step, part)

    def _store(self, step: int, part: Part) -> int:
        prompts, samples, size = self._work.placement.prompts, self._work.samples, self._work.piece
        versions = [piece.version for piece in part.pieces]
        part.pieces.clear()  # they know it: without this only the garbage collector would free both
        for index in range(prompts):
            first, last = index * samples // size, ((index + 1) * samples - 1) // size
            oldest = versions[first] if first == last else min(versions[first : last + 1])
            self._buffer.add(light_group(f"{step}-{index}", step * prompts + index, oldest, samples))
        self._waiting.set(len(self._buffer), self._loop.now)
        return prompts

    def _outcome(self, ends: list[float], staleness: dict[int, int], evicted: int) -> Outcome:
        work, cluster, total = self._work, self._cluster, self._loop.now
        prompts, lending = work.placement.prompts, self._lending
        drawn_s, lent_s = cluster.busy_s + cluster.lent_busy_s, lending.lent_s if lending else 0.0
        lent_replicas = work.loan.replicas if work.loan else 0
        first = self._steps // 4
        step_s = (ends[-1] - ends[first]) / (self._steps - first)
        return Outcome(
            steps=self._steps,
            total_s=total,
            step_s=step_s,
            seconds_per_prompt=step_s / prompts,
            samples_per_s=prompts * work.samples / step_s if step_s else 0.0,
            staleness=staleness,
            evicted_groups=evicted,
            syncs=self._sync.count,
            interrupted=cluster.interrupted,
            queue_mean=cluster.queue.mean(total),
            queue_max=cluster.queue.largest,
            buffer_mean=self._waiting.mean(total),
            buffer_max=self._waiting.largest,
            rollout_busy=cluster.busy_s / (total * work.placement.replicas) if total else 0.0,
            train_busy=self._trained_s / total if total else 0.0,
            lost=cluster.lost_s / drawn_s if drawn_s else 0.0,
            lends=lending.lends if lending else 0,
            lent_samples=lending.samples / (self._steps * prompts * work.samples) if lending else 0.0,
            lent_s=lent_s,
            lent_busy=cluster.lent_busy_s / (lent_s * lent_replicas) if lent_s else 0.0,
            events=cluster.events,
            trace=tuple(self._trace),
        )
