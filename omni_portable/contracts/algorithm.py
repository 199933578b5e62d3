"""The algorithm seam: what to sample, how to weigh it, what to minimise. Algorithms never see a model or a device.

An algorithm's spec (`PluginSpec.capabilities`) declares 'kind' ('diffusion' or 'token'), 'needs_log_probs',
'min_group_size', 'step_kinds' (kernels it may be used with) and 'trained_per_group' (samples of a group that
`DiffusionAlgorithm.select` keeps; absent where it keeps all). Its options may have
`requires() -> Requires`, which tells planning what an engine will keep; without it planning takes that to be nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from omni_portable.contracts.rollout import SamplingPlan, Schedule

if TYPE_CHECKING:
    import torch

    from omni_portable.contracts.tokens import AnyTrajectory

Policy = Literal["current", "reference", "old", "ema", "teacher", "fake"]
RowKind = Literal["transitions", "noised", "generated"]
"""What one training row is: a stored transition of a rollout, a clean sample with fresh noise, or a step of a rollout
whose clean prediction is judged at fresh noise (see :class:`ScoreDistillation`)."""


@dataclass(frozen=True)
class FakeScore:
    """A second network that learns to denoise the policy's own samples, trained before every step of the policy.

    Args:
        updates_per_step: optimizer steps of it before each one of the policy.
        lr: its learning rate; 0 takes that of the policy. All other settings of the optimizer are the policy's.
    """

    updates_per_step: int = 5
    lr: float = 0.0


@dataclass(frozen=True)
class Requires:
    """Extra policies and data an algorithm needs; the engine keeps them, the trainer schedules them.

    Args:
        fake_score: a trained copy of the policy that starts from its first weights (the policy 'fake').
    """

    reference_policy: bool = False
    old_policy: bool = False
    ema: bool = False
    teacher: bool = False
    preference_pairs: bool = False
    fake_score: FakeScore | None = None


@dataclass
class Replay:
    """What the actor recomputed for R rows; a row is one stored transition (sample, stochastic step).

    Args:
        log_prob: (R,) fp32 with gradient, of the stored next latents under the current policy.
        mean: (R, ...) fp32 with gradient, transition mean.
        std: (R,) fp32, the full transition standard deviation (sqrt(-dt) included).
        dt: (R,) fp32, negative.
        velocity: (R, ...) fp32 model output with gradient.
        reference_mean / old_mean / teacher_mean: (R, ...) fp32 under that policy, where required.
        teacher_velocity: (R, ...) fp32, where a teacher is required.
    """

    log_prob: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    dt: torch.Tensor
    velocity: torch.Tensor
    reference_mean: torch.Tensor | None = None
    old_mean: torch.Tensor | None = None
    teacher_mean: torch.Tensor | None = None
    teacher_velocity: torch.Tensor | None = None


@dataclass
class Denoising:
    """What the actor predicted for R rows of clean samples with fresh noise.

    Args:
        velocity: (R, ...) fp32 with gradient, of the network that is trained. Of 'generated' rows it is the policy's at
            the step of its rollout that gave `clean`; the other velocities are those at `noisy` always.
        clean / noise: (R, ...) fp32; the target velocity is noise - clean. Of 'generated' rows `clean` has the gradient
            of the policy.
        noisy: (R, ...) fp32, (1 - sigma) clean + sigma noise.
        sigma: (R,) fp32 in (0, 1].
        old_velocity / reference_velocity / teacher_velocity / fake_velocity: (R, ...) fp32 under that policy, where
            required; no gradient.
        streams: name -> [start, stop) in a row's flattened latents ('video', 'audio', ...).
    """

    velocity: torch.Tensor
    clean: torch.Tensor
    noise: torch.Tensor
    noisy: torch.Tensor
    sigma: torch.Tensor
    old_velocity: torch.Tensor | None = None
    reference_velocity: torch.Tensor | None = None
    teacher_velocity: torch.Tensor | None = None
    fake_velocity: torch.Tensor | None = None
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Rows:
    """The stored side of R rows, aligned with :class:`Replay` or :class:`Denoising`.

    Args:
        old_log_prob: (R,) fp32, log-prob under the policy that ratios are taken against; NaN for noised rows.
        advantage: (R,) fp32, one per sample, repeated on its rows.
        weight: (R,) fp32; 0 for rows that are padded or rejected (they leave numerator and denominator).
        step_kind: kernel that made the transitions.
        importance_weight: (R,) fp32 or None, rollout-correction weights (multiply the row's loss).
        sample_ids: request id of each row, for error messages.
        unit: (R,) int64, which rows belong to one unit of the selection (pair, group), or None.
    """

    old_log_prob: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    step_kind: str
    importance_weight: torch.Tensor | None = None
    sample_ids: Sequence[str] = field(default_factory=tuple)
    unit: torch.Tensor | None = None


@dataclass
class LossRows:
    """Loss and metrics per row; the engine sums loss * weight over a mini-batch and divides by the mini-batch's total
    weight once, so that the gradient does not depend on the micro-batch split or the number of ranks."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Selection:
    """Which samples of a rollout are trained on.

    Args:
        indices: positions among all samples, in training order.
        noise_keys: one per index; noised rows of equal keys share noise and noise levels. Empty: each has its own.
        unit: samples that belong together and must not be parted (2 for pairs); indices come in whole units.
    """

    indices: Sequence[int]
    noise_keys: Sequence[str] = ()
    unit: int = 1


@runtime_checkable
class Algorithm(Protocol):
    """Constructed as ``Algorithm(options)`` with an instance of its spec's options dataclass.

    `omni_portable.algorithms.base.DiffusionAlgorithm` has the common answers.
    """

    name: str
    requires: Requires
    row_kind: RowKind
    rollout_policy: Policy
    """The policy that rollouts are drawn from ('old' where a moving average samples)."""

    def schedule(self, published: Schedule) -> Schedule:
        """The noise levels to sample at: the family's, unless the algorithm has its own.

        Raises:
            ConfigError: its own do not fit the number of steps.
        """
        ...

    def sampling_plan(self, schedule: Schedule, seed: int, round_number: int = 0) -> SamplingPlan:
        """Stochastic steps for one rollout round; equal arguments give equal plans.

        Args:
            seed: of the round.
            round_number: of the rollout (1 for the first), for windows that move; 0 for the probe.
        """
        ...

    def validation_plan(self, schedule: Schedule) -> SamplingPlan:
        """How to sample for validation (deterministic unless the algorithm says otherwise)."""
        ...

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        """(N,) fp32 rewards, one per sample, and its group ids -> (N,) fp32 advantages."""
        ...

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """Which of the N samples to train on, and in which order."""
        ...

    def noise_levels(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        """(N, W) fp32 sigmas in (0, 1] of the W noised rows of each sample, a pure function of (key, seed).

        Asked for only where `row_kind` is 'noised' or 'generated'.
        """
        ...

    def old_policy_decay(self, round_number: int) -> float | None:
        """Decay d of old <- d old + (1 - d) current after this round's updates (0 copies); None leaves it alone.

        Asked for only where `requires.old_policy`.
        """
        ...

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        """Loss of each row; `replay` is a :class:`Replay` or a :class:`Denoising` as `row_kind` says."""
        ...


@runtime_checkable
class ScoreDistillation(Algorithm, Protocol):
    """An algorithm whose `row_kind` is 'generated': the policy's own samples, judged by the score of another network.

    A row is one step t of a rollout. The policy's clean sample there, x0 = x_t - sigma_t v, has the gradient; it is
    mixed with fresh noise at a level of `noise_levels`, and the other policies predict velocities at that mixture. The
    rollout must have kept the input of every step (`SamplingPlan.record_every_step`). Where `requires.fake_score` is
    set, that network first takes its own optimizer steps by `fake_loss`, on the same samples with other noise.
    """

    teacher_guidance_scale: float
    """Classifier-free guidance of the teacher; other than 1 it needs `SamplingPlan.keep_negative`."""

    def generated_steps(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        """(N, W) int64: the steps of each sample's rollout that are trained, a pure function of (key, seed)."""
        ...

    def fake_loss(self, seen: Denoising, rows: Rows) -> LossRows:
        """Loss of each row of the fake score network, whose prediction is `seen.velocity`; `seen.clean` is fixed."""
        ...


@dataclass
class TrainBatch:
    """Samples for one optimizer step: trajectories with one advantage each, in a fixed order.

    Args:
        trajectories: N trajectories, all of one kind; those of diffusion have equal latent shapes and W.
        advantages: (N,) fp32.
        weights: (N,) fp32, 0 for samples that were rejected (None: all 1).
        old_log_probs: (N, W) fp32; None means the rollout's own log-probs. W is the longest response for tokens.
        importance_weights: (N, W) fp32 rollout-correction weights, or None.
        noise_keys: one per sample, for noised rows (see :class:`Selection`).
        seed: of the round, for noised rows.
        unit: samples that must stay in one micro-batch.
    """

    trajectories: Sequence[AnyTrajectory]
    advantages: torch.Tensor
    weights: torch.Tensor | None = None
    old_log_probs: torch.Tensor | None = None
    importance_weights: torch.Tensor | None = None
    noise_keys: Sequence[str] = ()
    seed: int = 0
    unit: int = 1
    info: Mapping[str, object] = field(default_factory=dict)
