"""The algorithm seam: what to sample, how to weigh it, what to minimise. Algorithms never see a model or a device.

An algorithm's spec (`PluginSpec.capabilities`) declares 'kind' ('diffusion' or 'token'), 'needs_log_probs',
'min_group_size' and 'step_kinds' (kernels it may be used with). Its options may have `requires() -> Requires`, which
tells planning what an engine will keep; without it planning takes that to be nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from omni_portable.contracts.rollout import SamplingPlan, Schedule, Trajectory

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Requires:
    """Extra policies and data an algorithm needs; the engine keeps them, the trainer schedules them."""

    reference_policy: bool = False
    old_policy: bool = False
    ema: bool = False
    teacher: bool = False
    preference_pairs: bool = False


@dataclass
class Replay:
    """What the actor recomputed for R rows; a row is one stored transition (sample, stochastic step).

    Args:
        log_prob: (R,) fp32 with gradient, of the stored next latents under the current policy.
        mean: (R, ...) fp32 with gradient, transition mean.
        std: (R,) fp32, the full transition standard deviation (sqrt(-dt) included).
        dt: (R,) fp32, negative.
        reference_mean: (R, ...) fp32 under the reference policy, where required.
        velocity: (R, ...) fp32 model output with gradient.
    """

    log_prob: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    dt: torch.Tensor
    velocity: torch.Tensor
    reference_mean: torch.Tensor | None = None


@dataclass
class Rows:
    """The stored side of R rows, aligned with :class:`Replay`.

    Args:
        old_log_prob: (R,) fp32, log-prob under the policy that ratios are taken against.
        advantage: (R,) fp32, one per sample, repeated on its rows.
        weight: (R,) fp32; 0 for rows that are padded or rejected (they leave numerator and denominator).
        step_kind: kernel that made the transitions.
        importance_weight: (R,) fp32 or None, rollout-correction weights (multiply the row's loss).
        sample_ids: request id of each row, for error messages.
    """

    old_log_prob: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    step_kind: str
    importance_weight: torch.Tensor | None = None
    sample_ids: Sequence[str] = field(default_factory=tuple)


@dataclass
class LossRows:
    """Loss and metrics per row; the engine sums loss * weight over a mini-batch and divides by the mini-batch's total
    weight once, so that the gradient does not depend on the micro-batch split or the number of ranks."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@runtime_checkable
class Algorithm(Protocol):
    """Constructed as ``Algorithm(options)`` with an instance of its spec's options dataclass."""

    name: str
    requires: Requires

    def sampling_plan(self, schedule: Schedule, seed: int) -> SamplingPlan:
        """Stochastic steps for one rollout round; equal (schedule, seed) give equal plans."""
        ...

    def validation_plan(self, schedule: Schedule) -> SamplingPlan:
        """How to sample for validation (deterministic unless the algorithm says otherwise)."""
        ...

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        """(N,) fp32 rewards, one per sample, and its group ids -> (N,) fp32 advantages."""
        ...

    def loss(self, replay: Replay, rows: Rows) -> LossRows: ...


@dataclass
class TrainBatch:
    """Samples for one optimizer step: trajectories with one advantage each, in a fixed order.

    Args:
        trajectories: N trajectories of equal latent shape and W.
        advantages: (N,) fp32.
        weights: (N,) fp32, 0 for samples that were rejected (None: all 1).
        old_log_probs: (N, W) fp32; None means the rollout's own log-probs.
    """

    trajectories: list[Trajectory]
    advantages: torch.Tensor
    weights: torch.Tensor | None = None
    old_log_probs: torch.Tensor | None = None
    info: Mapping[str, object] = field(default_factory=dict)
