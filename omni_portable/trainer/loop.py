"""The one loop: a producer (prompts -> rollout -> rewards) fills the buffer, a consumer (sample -> advantages -> update
-> publish weights) empties it. How the two share the machine is the business of the mode (`turns`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from omni_portable.config.correction import effective
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.logger import MetricLogger
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.tokens import TokenAlgorithm
from omni_portable.contracts.training import Policy, TrainEngine
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.checkpoint import TrainerState
from omni_portable.trainer.consistency import check_gap
from omni_portable.trainer.correction import correct_batch
from omni_portable.trainer.measure import agreement, batch_shape_gaps
from omni_portable.trainer.modes.base import Turns
from omni_portable.trainer.producer import Producer
from omni_portable.trainer.progress import Progress
from omni_portable.trainer.requests import round_seed
from omni_portable.trainer.responses import response_metrics
from omni_portable.trainer.saving import CheckpointStage
from omni_portable.trainer.stages import AdvantageStage, UpdateStage
from omni_portable.trainer.timeline import append_timeline
from omni_portable.trainer.timing import StageClock
from omni_portable.trainer.validation import ValidationStage


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
    turns: Turns
    validation: ValidationStage | None
    checkpoint: CheckpointStage
    loggers: Sequence[MetricLogger]
    clock: StageClock
    progress: Progress
    start_step: int

    async def run(self) -> None:
        """Train from start_step + 1 to the last step."""
        try:
            await self.turns.start()
            self.clock.take()  # starting belongs to no step, and nobody idled
            await self._run()
        finally:
            await self.turns.close()

    async def _run(self) -> None:
        trainer = self.config.trainer
        if self.start_step == 0 and trainer.validate_before and self.validation is not None:
            self._log(0, await self._validate(0))
        for step in range(self.start_step + 1, trainer.total_steps + 1):
            with self.clock.measure("step"):
                metrics = await self._step(step)
            last = step == trainer.total_steps
            if self.validation is not None and (last or _due(step, trainer.validate_interval)):
                metrics |= await self._validate(step)
            timing = self.clock.take()
            metrics |= self._statistics()
            append_timeline(self.run_dir, step, self.clock.spans)
            self._log(step, metrics | throughput(metrics, timing) | timing)
            if last or _due(step, trainer.save_interval):
                self._save(step)

    async def _step(self, step: int) -> dict[str, float]:
        with self.clock.measure("wait"):
            count = await self.turns.fill(step)
        groups = self.buffer.sample(count, self.turns.version)
        metrics = reward_metrics(groups) | self.buffer.statistics()
        made = self.producer.logs.pop(step)
        metrics["reward/dropped_groups"] = float(made.dropped_groups)
        if self.producer.teacher is not None:
            metrics["teacher/failed_samples"] = float(made.untaught)
        metrics["policy/version"] = float(self.turns.version)
        metrics |= response_metrics([trajectory for group in groups for trajectory in group.trajectories])
        await self.turns.before_update()
        self.progress.stage(f"step {step}: update")
        with self.clock.measure("update"):
            metrics |= await self.turns.carry_out(lambda: self._update(step, groups, made.refills))
        self.progress.stage(f"step {step}: weight sync")
        with self.clock.measure("sync"):
            await self.turns.publish(int(metrics["actor/optimizer_steps"]))
        return metrics

    def _statistics(self) -> dict[str, float]:
        """What rollout did since the last row, which is what that row's seconds are of, whatever was trained on."""
        return self.engine.statistics() | self.producer.rollout.statistics() | self.turns.statistics()

    def _update(self, step: int, groups: Sequence[ScoredGroup], refills: int) -> dict[str, float]:
        """Train on the groups; metrics of the update, and how actor and rollout agreed before it."""
        algorithm, consistency = self.producer.algorithm, self.config.consistency
        batch = self.advantage.run(groups, round_seed(self.config.trainer.seed, f"train-{step}"))
        metrics: dict[str, float] = {}
        if isinstance(algorithm, TokenAlgorithm) and algorithm.dynamic_sampling:
            metrics["reward/refill_rounds"] = float(refills)
            metrics["reward/trained_samples"] = float(len(batch.trajectories)) if batch else 0.0
        if batch is None:
            return metrics | {"actor/optimizer_steps": 0.0}
        comparable = algorithm.row_kind in ("transitions", "tokens") and consistency.measure != "off"
        if comparable and step == self.start_step + 1 == 1 and consistency.batch_shapes:
            metrics |= batch_shape_gaps(self.actor, batch, consistency.batch_shapes)
        correction = effective(self.config)
        correcting = correction.mode != "off"
        full = self.actor.log_probs(batch) if correcting or (comparable and consistency.measure == "full") else None
        if correcting and full is not None:
            batch, corrected = correct_batch(batch, full, correction)
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
            metrics |= agreement(actor, first, self.turns.version if self.turns.fresh else None)
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
    """Samples that were trained on per second of the step; samples that were drawn per second in which rollout was busy
    (none of them may be among the former where rollout runs ahead); the share of the step that belongs to none of its
    stages."""
    samples, step = metrics["reward/samples"], timing["timing_s/step"]
    figures = {"perf/samples_per_s": samples / step}
    if rollout := timing["role_s/rollout/busy"]:
        figures["perf/rollout_samples_per_s"] = metrics["perf/rollout_samples"] / rollout
    return figures | {"perf/outside_stages": timing.get("critical_path_s/other", 0.0) / step}


def advantage_metrics(advantages: torch.Tensor) -> dict[str, float]:
    return {
        "advantage/mean": advantages.mean().item(),
        "advantage/max": advantages.max().item(),
        "advantage/min": advantages.min().item(),
    }
