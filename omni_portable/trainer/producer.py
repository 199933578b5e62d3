"""The producer side of the loop: prompts -> rollout -> rewards -> buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from omni_portable.config.modes import SYNC
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.tokens import AnyAlgorithm, AnyRequest, AnyTrajectory, TokenAlgorithm
from omni_portable.data.prompts import PromptSampler
from omni_portable.reward.compose import ComposedReward, join_rewards
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.drawing import Drawing
from omni_portable.trainer.modes.stock import Stock
from omni_portable.trainer.progress import Progress
from omni_portable.trainer.rollout_stage import RolloutStage, both, gathered
from omni_portable.trainer.stages import RewardStage, form_groups, groups_with_signal, without
from omni_portable.trainer.teaching import Taught, TeacherStage, bare
from omni_portable.trainer.timing import StageClock

Judged: TypeAlias = tuple[Sequence[AnyTrajectory], ComposedReward, Mapping[str, str]]
"""Trajectories, with their teachers' outputs where asked for; rewards; request id -> why a teacher gave no output."""


@dataclass
class RoundLog:
    """What one round did beside its groups: groups left out for failed rewards or teachers, further draws of prompts,
    and samples whose teacher failed."""

    dropped_groups: int = 0
    refills: int = 0
    untaught: int = 0


@dataclass
class Producer:
    """One round of prompts at a time, or several rounds at once.

    An algorithm with dynamic sampling may have further prompts drawn, until as many groups as a batch has carry a
    signal or its `refill_rounds` are used up. Which prompts these are, and where a group stands in the order of
    submission, follows from the round alone.

    Args:
        overlap: score each piece of a rollout as soon as it is drawn, beside the drawing of the next.
        stock: is told what is drawn and scored of each round, where anybody asks.
        teacher: asks the teachers that live outside the train engine, beside the rewards; None where there are none.
    """

    config: RunConfig
    sampler: PromptSampler
    algorithm: AnyAlgorithm
    requests: Drawing
    rollout: RolloutStage
    reward: RewardStage
    buffer: ReplayBuffer
    clock: StageClock
    progress: Progress
    overlap: bool = False
    stock: Stock | None = None
    teacher: TeacherStage | None = None
    logs: dict[int, RoundLog] = field(default_factory=dict)

    async def produce(self, step: int) -> int:
        """Draw and score round `step` (from 1), store its groups and say how many there are."""
        log = self.logs[step] = RoundLog()
        draws, made, signal = self._draws(), 0, 0
        while True:
            draw = (step - 1) * draws + log.refills
            groups = await self._draw(step, draw, log)
            made += len(groups)
            if log.refills == draws - 1:
                return made
            signal += groups_with_signal(self.algorithm, groups)
            if signal >= self.config.data.train_batch_size:
                return made
            log.refills += 1

    def _draws(self) -> int:
        """Batches of prompts that belong to one round."""
        return 1 + (self.algorithm.refill_rounds if isinstance(self.algorithm, TokenAlgorithm) else 0)

    async def _draw(self, step: int, batch: int, log: RoundLog) -> list[ScoredGroup]:
        name = f"step-{step}" + (f"-refill-{log.refills}" if log.refills else "")
        prompts = self.sampler.batch(batch)
        requests = self.requests.training(prompts, step, name)
        draw = self._overlapping if self.overlap else self._in_turn
        trajectories, reward, untaught = await draw(step, requests)
        log.untaught += len(untaught)
        reward = without(reward, trajectories, untaught)
        groups, dropped = form_groups(trajectories, reward, batch * len(prompts))
        log.dropped_groups += dropped
        for group in groups:
            if self.config.trainer.mode == SYNC:
                self.buffer.add(group)  # nobody takes anything out meanwhile: where there is no room, there never is
            else:
                await self.buffer.store(group)
        return groups

    async def _in_turn(self, step: int, requests: Sequence[AnyRequest]) -> Judged:
        self.progress.stage(f"step {step}: rollout")
        with self.clock.measure("rollout"):
            trajectories = await self.rollout.run(requests)
        self.progress.stage(f"step {step}: reward")
        return await self._judge(trajectories)

    async def _overlapping(self, step: int, requests: Sequence[AnyRequest]) -> Judged:
        async def piece(part: Sequence[AnyRequest]) -> Judged:
            judged = await self._judge(await self.rollout.draw(part, self.clock))
            if self.stock is not None:
                self.stock.add(step, len(part))
            return judged

        self.progress.stage(f"step {step}: rollout and reward")
        done = await gathered([piece(part) for part in self.rollout.pieces(requests)])
        return (
            [trajectory for trajectories, _, _ in done for trajectory in trajectories],
            join_rewards([reward for _, reward, _ in done]),
            {name: why for _, _, errors in done for name, why in errors.items()},
        )

    async def _judge(self, trajectories: Sequence[AnyTrajectory]) -> Judged:
        """Ask scorers and teachers side by side; nobody looks at the media any more afterwards."""

        async def score() -> ComposedReward:
            with self.clock.measure("reward"):
                return await self.reward.run(trajectories)

        async def teach() -> Taught:
            if self.teacher is None:
                return Taught(trajectories)
            with self.clock.measure("teacher"):
                return await self.teacher.run(trajectories)

        reward, taught = await both(score(), teach())
        return [bare(trajectory) for trajectory in taught.trajectories], reward, taught.errors
