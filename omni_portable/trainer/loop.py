"""The one loop: a producer (prompts -> rollout -> rewards) fills the buffer, a consumer (sample -> advantages -> update
-> publish weights) empties it. How the two share the machine is the business of `turns`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from omni_portable.config.schema import RunConfig
from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.logger import MetricLogger
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.tokens import AnyAlgorithm, TokenAlgorithm
from omni_portable.contracts.training import Policy, TrainEngine
from omni_portable.data.prompts import PromptSampler
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.checkpoint import TrainerState
from omni_portable.trainer.consistency import check_gap, logprob_metrics, stack_log_probs
from omni_portable.trainer.correction import correct_batch
from omni_portable.trainer.drawing import Drawing
from omni_portable.trainer.measure import batch_shape_gaps, row_timesteps
from omni_portable.trainer.progress import Progress
from omni_portable.trainer.requests import round_seed
from omni_portable.trainer.responses import response_metrics
from omni_portable.trainer.saving import CheckpointStage
from omni_portable.trainer.stages import (
    AdvantageStage,
    RewardStage,
    RolloutStage,
    UpdateStage,
    form_groups,
    groups_with_signal,
)
from omni_portable.trainer.timing import StageClock
from omni_portable.trainer.turns import SyncTurns
from omni_portable.trainer.validation import ValidationStage


@dataclass
class Producer:
    """Prompts -> rollout -> rewards -> buffer, for one step.

    An algorithm with dynamic sampling may have further prompts drawn, until as many groups as a batch has carry a
    signal or its `refill_rounds` are used up. Which prompts these are follows from the step alone.
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
    submissions: int = 0
    dropped_groups: int = 0
    refills: int = 0

    async def produce(self, step: int) -> None:
        allowed = self.algorithm.refill_rounds if isinstance(self.algorithm, TokenAlgorithm) else 0
        self.dropped_groups = self.refills = signal = 0
        while True:
            name = f"step-{step}" + (f"-refill-{self.refills}" if self.refills else "")
            groups = await self._draw(step, (step - 1) * (allowed + 1) + self.refills, name)
            if self.refills == allowed:
                return
            signal += groups_with_signal(self.algorithm, groups)
            if signal >= self.config.data.train_batch_size:
                return
            self.refills += 1

    async def _draw(self, step: int, batch: int, name: str) -> list[ScoredGroup]:
        requests = self.requests.training(self.sampler.batch(batch), step, name)
        self.progress.stage(f"step {step}: rollout")
        with self.clock.measure("rollout"):
            trajectories = await self.rollout.run(requests)
        self.progress.stage(f"step {step}: reward")
        with self.clock.measure("reward"):
            reward = await self.reward.run(trajectories)
        groups, dropped = form_groups(trajectories, reward, self.submissions)
        self.dropped_groups += dropped
        self.submissions += len(groups) + dropped
        for group in groups:
            self.buffer.add(group)
        return groups


@dataclass
class Loop:
    """Everything one run needs; `run` is the whole of training."""

    config: RunConfig
    run_dir: Path
    actor: TrainEngine
    engine: RolloutEngine
    producer: Producer
    buffer: ReplayBuffer
    advantage: AdvantageStage
    update: UpdateStage
    turns: SyncTurns
    validation: ValidationStage | None
    checkpoint: CheckpointStage
    loggers: Sequence[MetricLogger]
    clock: StageClock
    progress: Progress
    start_step: int

    async def run(self) -> None:
        trainer = self.config.trainer
        if self.start_step == 0 and trainer.validate_before and self.validation is not None:
            self._log(0, await self._validate(0))
        for step in range(self.start_step + 1, trainer.total_steps + 1):
            with self.clock.measure("step"):
                metrics = await self._step(step)
            last = step == trainer.total_steps
            if self.validation is not None and (last or _due(step, trainer.validate_interval)):
                metrics |= await self._validate(step)
            self._log(step, metrics | throughput(metrics, timing := self.clock.take()) | timing)
            if last or _due(step, trainer.save_interval):
                self._save(step)

    async def _step(self, step: int) -> dict[str, float]:
        await self.turns.fill(step)
        groups = self.buffer.sample(self.buffer.available(self.turns.version), self.turns.version)
        metrics = reward_metrics(groups) | self.buffer.statistics() | self.engine.statistics()
        metrics["reward/dropped_groups"] = float(self.producer.dropped_groups)
        metrics |= response_metrics([trajectory for group in groups for trajectory in group.trajectories])
        await self.turns.before_update()
        self.progress.stage(f"step {step}: update")
        with self.clock.measure("update"):
            metrics |= self._update(step, groups)
        self.progress.stage(f"step {step}: weight sync")
        with self.clock.measure("sync"):
            await self.turns.publish()
        return metrics

    def _update(self, step: int, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Train on the groups; metrics of the update, and how actor and rollout agreed before it."""
        algorithm, consistency = self.producer.algorithm, self.config.consistency
        batch = self.advantage.run(groups, round_seed(self.config.trainer.seed, f"train-{step}"))
        metrics: dict[str, float] = {}
        if isinstance(algorithm, TokenAlgorithm) and algorithm.dynamic_sampling:
            metrics["reward/refill_rounds"] = float(self.producer.refills)
            metrics["reward/trained_samples"] = float(len(batch.trajectories)) if batch else 0.0
        if batch is None:
            return metrics | {"actor/optimizer_steps": 0.0}
        comparable = algorithm.row_kind in ("transitions", "tokens") and consistency.measure != "off"
        if comparable and step == self.start_step + 1 == 1 and consistency.batch_shapes:
            metrics |= batch_shape_gaps(self.actor, batch, consistency.batch_shapes)
        correcting = self.config.rollout_correction.mode != "off"
        full = self.actor.log_probs(batch) if correcting or (comparable and consistency.measure == "full") else None
        if correcting and full is not None:
            batch, corrected = correct_batch(batch, full, self.config.rollout_correction)
            metrics |= corrected
        outcome = self.update.run(batch)
        if algorithm.requires.old_policy and (decay := algorithm.old_policy_decay(step)) is not None:
            self.actor.update_old_policy(decay)
            metrics["actor/old_policy_decay"] = decay
        metrics |= outcome.metrics | advantage_metrics(batch.advantages)
        metrics["actor/optimizer_steps"] = float(outcome.optimizer_steps)
        if comparable:
            first = outcome.first_trajectories if full is None else batch.trajectories
            actor = outcome.first_actor if full is None else full
            metrics |= logprob_metrics(actor, stack_log_probs(first), row_timesteps(first))
            check_gap(metrics, consistency.max_logprob_gap)
        return metrics

    async def _validate(self, step: int) -> dict[str, float]:
        assert self.validation is not None
        self.progress.stage(f"step {step}: validation")
        policy: Policy = "ema" if self.config.actor.ema_decay else "current"
        with self.clock.measure("validate"):
            async with self.turns.serving(policy):
                result = await self.validation.run(step)
        if result.grid is not None:
            for logger in self.loggers:
                logger.log_image(step, "validation", result.grid)
        return dict(result.metrics)

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        for logger in self.loggers:
            logger.log(step, metrics)
        self.progress.step(step, metrics)

    def _save(self, step: int) -> None:
        self.progress.stage(f"step {step}: checkpoint")
        with self.clock.measure("checkpoint"):
            self.checkpoint.run(
                TrainerState(
                    step=step,
                    policy_version=self.turns.version,
                    submissions=self.producer.submissions,
                    fingerprint=self.checkpoint.fingerprint,
                )
            )


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def reward_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Reward statistics over all samples, per component, and the share of groups without signal (all rewards equal)."""
    rewards = torch.tensor([r for g in groups for r in g.rewards], dtype=torch.float64)
    metrics = {
        "reward/mean": rewards.mean().item(),
        "reward/std": rewards.std(correction=0).item(),
        "reward/min": rewards.min().item(),
        "reward/max": rewards.max().item(),
        "reward/groups": float(len(groups)),
        "reward/samples": float(len(rewards)),
        "reward/zero_std_groups": sum(len(set(g.rewards)) == 1 for g in groups) / len(groups),
    }
    for name in groups[0].components:
        values = [v for g in groups for v in g.components[name]]
        metrics[f"reward/{name}"] = sum(values) / len(values)
    return metrics


def throughput(metrics: Mapping[str, float], timing: Mapping[str, float]) -> dict[str, float]:
    """Samples per second of rollout alone and of the whole step, and the share of the step outside its stages."""
    samples, step = metrics["reward/samples"], timing["timing_s/step"]
    inside = sum(timing[f"timing_s/{stage}"] for stage in ("rollout", "reward", "update", "sync"))
    return {
        "perf/rollout_samples_per_s": samples / timing["timing_s/rollout"],
        "perf/samples_per_s": samples / step,
        "perf/outside_stages": 1 - inside / step,
    }


def advantage_metrics(advantages: torch.Tensor) -> dict[str, float]:
    return {
        "advantage/mean": advantages.mean().item(),
        "advantage/max": advantages.max().item(),
        "advantage/min": advantages.min().item(),
    }
