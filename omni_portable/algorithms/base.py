"""What most diffusion algorithms answer alike; an algorithm overrides what is its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.advantages import group_advantages
from omni_portable.algorithms.sampling import deterministic_plan
from omni_portable.contracts.algorithm import (
    Denoising,
    LossRows,
    Policy,
    Replay,
    Requires,
    RowKind,
    Rows,
    Selection,
)
from omni_portable.contracts.rollout import SamplingPlan, Schedule


class DiffusionAlgorithm:
    """Defaults of `contracts.algorithm.Algorithm`: on-policy, every sample is trained on, advantages per group."""

    name: str
    requires = Requires()
    row_kind: RowKind = "transitions"
    rollout_policy: Policy = "current"

    def schedule(self, published: Schedule) -> Schedule:
        return published

    def sampling_plan(self, schedule: Schedule, seed: int, round_number: int = 0) -> SamplingPlan:
        """Deterministic sampling without a record: for algorithms that train on clean samples."""
        return deterministic_plan()

    def validation_plan(self, schedule: Schedule) -> SamplingPlan:
        return deterministic_plan()

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        return group_advantages(rewards, groups)

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """All samples, in order."""
        return Selection(range(len(groups)))

    def noise_levels(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        raise NotImplementedError(f"algorithm '{self.name}' trains on {self.row_kind}, which have no noise levels")

    def old_policy_decay(self, round_number: int) -> float | None:
        """The old policy is the one that drew the rollout: copied after every round."""
        return 0.0

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        raise NotImplementedError(f"algorithm '{self.name}' has no loss")


def as_replay(replay: Replay | Denoising) -> Replay:
    """Narrow the loss's argument; an engine that ignores `row_kind` is found here (`TypeError`)."""
    if not isinstance(replay, Replay):
        raise TypeError("this algorithm trains on stored transitions, but the engine passed noised samples")
    return replay


def as_denoising(replay: Replay | Denoising) -> Denoising:
    """As :func:`as_replay`, for noised rows."""
    if not isinstance(replay, Denoising):
        raise TypeError("this algorithm trains on noised samples, but the engine passed stored transitions")
    return replay


def required(tensor: torch.Tensor | None, policy: str) -> torch.Tensor:
    """What the engine must have computed because `Requires` asked for it."""
    if tensor is None:
        raise ValueError(f"the engine replayed no {policy} policy (Requires)")
    return tensor
