"""Engines, scorers and trajectories that record what the trainer asks of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_portable.algorithms.base import DiffusionAlgorithm
from omni_portable.contracts.algorithm import LossRows, Replay, Requires, Rows, TrainBatch
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import RolloutRequest, RolloutResult, SamplingPlan, Schedule, Trajectory
from omni_portable.contracts.training import StepResult
from omni_portable.reward.compose import ComposedReward
from tests.support.requests import make_request, make_trajectory


def make_scored(count: int, *, group_size: int = 2) -> list[Trajectory]:
    """`count` trajectories of two recorded steps in groups 'g0', 'g1', ..., request ids 'r0', 'r1', ...

    Log-probs of trajectory i are (i, i + 0.5)."""
    rows = []
    for index in range(count):
        group = index // group_size
        request = make_request(
            index,
            group_id=f"g{group}",
            prompt_id=f"p{group}",
            prompt=f"prompt {group}",
            sample_index=index % group_size,
        )
        trajectory = make_trajectory(request)
        trajectory.step_indices = torch.tensor([1, 2])
        trajectory.log_probs = torch.tensor([float(index), index + 0.5])
        pixels = torch.full((3, 8, 8), index, dtype=torch.uint8)
        trajectory.artifacts = {"image": MediaArtifact("image", "image", pixels, "CHW")}
        rows.append(trajectory)
    return rows


def make_reward(total: Sequence[float], failed: Sequence[str] = ()) -> ComposedReward:
    """What a composer returns: NaN totals for the failed request ids, component 's/score' equal to the total."""
    scores = [math.nan if f"r{index}" in failed else value for index, value in enumerate(total)]
    return ComposedReward(
        total=scores,
        components={"s/score": list(scores)},
        details=[{"s": {"text": f"seen {index}"}} for index in range(len(scores))],
        failed=list(failed),
        seconds={"s": 0.0},
        errors={sample_id: f"no answer for {sample_id}" for sample_id in failed},
    )


@dataclass
class FixedReward:
    """A reward stage that returns what it was given."""

    reward: ComposedReward

    async def run(self, trajectories: Sequence[Trajectory]) -> ComposedReward:
        return self.reward


class GroupMean(DiffusionAlgorithm):
    """An algorithm whose advantages are rewards minus their group's mean."""

    name = "group_mean"
    requires = Requires()

    def sampling_plan(self, schedule: Schedule, seed: int, round_number: int = 0) -> SamplingPlan:
        return SamplingPlan(kind="sde", noise_level=0.7, stochastic_steps=(1, 2))

    def validation_plan(self, schedule: Schedule) -> SamplingPlan:
        return SamplingPlan()

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        out = rewards.clone()
        for group in set(groups):
            rows = torch.tensor([g == group for g in groups])
            out[rows] -= rewards[rows].mean()
        return out

    def loss(self, replay: Replay, rows: Rows) -> LossRows:
        raise NotImplementedError


@dataclass
class RecordingActor:
    """A train engine that records its batches; its weights are a number per policy."""

    values: dict[str, float] = field(default_factory=lambda: {"current": 0.0, "ema": -1.0})
    batches: list[TrainBatch] = field(default_factory=list)

    def train_step(self, batch: TrainBatch, algorithm: Any) -> StepResult:
        self.batches.append(batch)
        self.values["current"] += 1.0
        step = float(len(self.batches))
        log_probs = torch.stack([t.log_probs for t in batch.trajectories]) + 100.0 * (step - 1)
        return StepResult({"actor/loss": step, "actor/lr": 0.5}, log_probs)

    def log_probs(self, batch: TrainBatch, policy: str = "current") -> torch.Tensor:
        return torch.full((len(batch.trajectories), 1), self.values[policy])

    def weights(self, policy: str = "current") -> tuple[str, float]:
        return policy, self.values[policy]

    def weights_checksum(self, policy: str = "current") -> dict[str, str]:
        return {"w": str(self.values[policy])}


@dataclass
class RecordingEngine:
    """A rollout engine that records its calls; `broken` operations answer with an Ack that is not ok."""

    calls: list[str] = field(default_factory=list)
    held: float = 0.0
    version: int = 0
    broken: bool = False
    aborted: tuple[str, ...] = ()

    def _ack(self, operation: str) -> Ack:
        self.calls.append(operation)
        return Ack(operation, self.version)

    def pause(self) -> Ack:
        return self._ack("pause")

    def resume(self) -> Ack:
        return self._ack("resume")

    def sleep(self, level: int = 1) -> Ack:
        return self._ack(f"sleep {level}")

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        return self._ack("wake")

    def update_weights(self, stream: Any, version: int) -> Ack:
        policy, value = stream
        self.calls.append(f"update {policy} v{version}")
        if self.broken:
            return Ack("update_weights", self.version, detail="out of memory", ok=False)
        self.held, self.version = value, version
        return Ack("update_weights", version)

    def weights_checksum(self, names: Any = None) -> dict[str, str]:
        self.calls.append("checksum")
        return {"w": str(self.held)}

    async def generate(self, requests: Sequence[RolloutRequest]) -> RolloutResult:
        self.calls.append(f"generate {len(requests)}")
        finished = [r for r in requests if r.request_id not in self.aborted]
        return RolloutResult([make_trajectory(r, self.version) for r in finished], self.aborted)


def by_name(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """The metrics under a prefix."""
    return {name: value for name, value in metrics.items() if name.startswith(prefix)}
