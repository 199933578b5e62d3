"""A micro-batch: a contiguous run of samples packed for the device, and its training rows.

What a row is differs between algorithms (a stored transition, a clean sample with fresh noise); packing, weights and
checks do not. Nothing here knows how many processes train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from omni_portable.contracts.algorithm import Policy, TrainBatch
from omni_portable.contracts.errors import ConsistencyError, DataError
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Conditioning, Trajectory
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.models.policy import split_conditioning

AnyT = TypeVar("AnyT", bound=AnyTrajectory)


@dataclass(frozen=True)
class Scored:
    """One forward over B rows under some policy.

    Args:
        velocity: (B, ...) fp32.
        log_prob: (B,) fp32; NaN for noised rows.
        mean: (B, ...) fp32, or the velocity again where rows have no transition mean.
        std / dt: (B,) fp32; NaN for noised rows.
    """

    velocity: torch.Tensor
    log_prob: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    dt: torch.Tensor


@dataclass(frozen=True)
class Common:
    """What every micro-batch of B samples carries.

    Args:
        first: index of the first row in the mini-batch.
        request_ids: of the B rows.
        metadata: fields of each row's prompt.
        advantages / weights: (B,) fp32 on the device.
        trained: (B,) bool on the CPU, rows of weight above 0.
        unit: (B,) int64 on the device, number of the unit of the selection that a row belongs to.
        teacher: what a teacher outside the engine said of each row; None where nobody asked.
    """

    first: int
    request_ids: tuple[str, ...]
    metadata: tuple[Mapping[str, object], ...]
    advantages: torch.Tensor
    weights: torch.Tensor
    trained: torch.Tensor
    unit: torch.Tensor
    conditioning: Conditioning = field(default_factory=dict)
    negative: Conditioning | None = None
    teacher: tuple[TeacherOutput | None, ...] = ()

    def kept(self, device: torch.device) -> torch.Tensor | None:
        """Positions of the rows that are trained on; None where all are."""
        return None if bool(self.trained.all()) else self.trained.nonzero().flatten().to(device)


class MicroBatch(ABC):
    """Rows of B samples, W each; one forward pass per (micro-batch, row number)."""

    common: Common

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """W, the training rows of each sample."""

    @abstractmethod
    def forward(self, adapter: Any, step: int) -> Any:
        """Run row `step` (0..W-1) of every sample under the adapter's present weights; has a `log_prob`."""

    def compared(self, policy: Policy) -> MicroBatch:
        """The rows that another policy runs in the places of these; the same ones, unless a kind says otherwise."""
        return self

    def recorded(self, scored: Any) -> torch.Tensor:
        """(B,) or (B, several) detached log-probs of one forward, for the step's record."""
        log_probs: torch.Tensor = scored.log_prob
        return log_probs.detach()

    @abstractmethod
    def loss_inputs(self, step: int, scored: Any, others: Mapping[str, Any]) -> tuple[Any, Any]:
        """What the algorithm sees of one (micro-batch, row number): the R <= B rows with a weight above 0.

        Rows of weight 0 are left out rather than multiplied by it, so that a value in them that is not finite, or a
        mean that the algorithm takes over its rows, cannot change a gradient.

        Args:
            others: policy -> the same forward under it, without gradient.
        """


Forward = Callable[[MicroBatch, int], Any]
"""Runs one row number of a micro-batch under some policy, without gradient."""


def pack_common(
    adapter: DiffusionAdapter, batch: TrainBatch, weights: torch.Tensor, part: slice, device: torch.device
) -> Common:
    """The part of a batch that does not depend on what its rows are."""
    trajectories = denoised(batch.trajectories[part])
    positive, negative = _collate(adapter, trajectories, device)
    return Common(
        first=part.start,
        request_ids=tuple(t.request.request_id for t in trajectories),
        metadata=tuple(t.request.metadata for t in trajectories),
        advantages=batch.advantages[part].detach().to(device, torch.float32),
        weights=weights[part].to(device),
        trained=weights[part] > 0,
        unit=(torch.arange(len(trajectories)) // batch.unit).to(device),
        conditioning=positive,
        negative=negative,
        teacher=tuple(t.teacher for t in trajectories),
    )


def parts(batch: TrainBatch, size: int) -> list[slice]:
    """Contiguous parts of at most `size` samples, none of which tears a unit apart.

    Raises:
        DataError: no samples, tensors that do not fit them, or a number of samples that is no whole number of units.
    """
    count = len(batch.trajectories)
    if not count:
        raise DataError("the train engine was given a batch without trajectories")
    if count % batch.unit:
        raise DataError(f"{count} samples are no whole number of units of {batch.unit}")
    check_shape("advantages", batch.advantages, (count,))
    if batch.weights is not None:
        check_shape("weights", batch.weights, (count,))
    size = max(batch.unit, size - size % batch.unit)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def cut(batch: TrainBatch, part: slice) -> TrainBatch:
    """The same batch with some of its samples, in as many bytes (media, which training does not read, are left out)."""

    def rows(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[part]

    return replace(
        batch,
        trajectories=[_without_media(trajectory) for trajectory in batch.trajectories[part]],
        advantages=batch.advantages[part],
        weights=rows(batch.weights),
        old_log_probs=rows(batch.old_log_probs),
        importance_weights=rows(batch.importance_weights),
        noise_keys=batch.noise_keys[part],
    )


def sample_weights(batch: TrainBatch) -> torch.Tensor:
    """(N,) fp32 weights on the CPU, all 1 where the batch has none.

    Raises:
        DataError: a weight that is negative or not finite, or no weight above 0.
    """
    if batch.weights is None:
        return torch.ones(len(batch.trajectories), dtype=torch.float32)
    weights = batch.weights.detach().to("cpu", torch.float32)
    bad = ~torch.isfinite(weights) | (weights < 0)
    if bool(bad.any()):
        index = int(bad.nonzero()[0])
        name = batch.trajectories[index].request.request_id
        raise DataError(f"sample '{name}' has the weight {float(weights[index])}; weights are finite and at least 0")
    if not bool((weights > 0).any()):
        raise DataError(
            f"all {len(weights)} samples of the train batch have weight 0, so there is nothing to train on",
            remedy="find out why every sample was rejected (rewards, filters) before training goes on",
        )
    return weights


def denoised(trajectories: Sequence[AnyTrajectory]) -> list[Trajectory]:
    """Trajectories of a diffusion model; `ConsistencyError` where one is a token sequence."""
    kept = [trajectory for trajectory in trajectories if isinstance(trajectory, Trajectory)]
    if len(kept) != len(trajectories):
        raise ConsistencyError("a diffusion model was given token sequences to train on")
    return kept


def check_equal(trajectories: Sequence[AnyT], facts: Callable[[AnyT], Mapping[str, object]]) -> None:
    """Every trajectory of a micro-batch must agree with the first on the named facts (`ConsistencyError`)."""
    lead = trajectories[0]
    expected = facts(lead)
    for trajectory in trajectories[1:]:
        for (what, first), mine in zip(expected.items(), facts(trajectory).values(), strict=True):
            if mine != first:
                raise ConsistencyError(
                    f"requests '{lead.request.request_id}' and '{trajectory.request.request_id}' of one micro-batch "
                    f"differ in {what}: {first} and {mine}"
                )


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """`DataError` where a batch's tensor does not fit its trajectories."""
    if tuple(tensor.shape) != shape:
        raise DataError(f"the train batch's {name} have shape {tuple(tensor.shape)}, expected {shape}")


def take(tensor: torch.Tensor | None, rows: torch.Tensor | None) -> torch.Tensor:
    """The chosen rows of a tensor that must be there."""
    assert tensor is not None
    return tensor if rows is None else tensor[rows]


def _without_media(trajectory: AnyTrajectory) -> AnyTrajectory:
    if isinstance(trajectory, Trajectory):
        return replace(trajectory, request=replace(trajectory.request, media={}, target={}), artifacts={})
    return replace(trajectory, request=replace(trajectory.request, media={}, target={}), artifacts={})


def _collate(
    adapter: DiffusionAdapter, trajectories: Sequence[Trajectory], device: torch.device
) -> tuple[Conditioning, Conditioning | None]:
    """Positive and negative conditioning batched as the rollout batched them: each by the family's own collation."""
    split = [split_conditioning(_on(t.conditioning, device)) for t in trajectories]
    negatives = [negative for _, negative in split if negative is not None]
    if negatives and len(negatives) != len(split):
        raise ConsistencyError("some trajectories of one micro-batch carry a negative conditioning, others none")
    return adapter.collate([positive for positive, _ in split]), adapter.collate(negatives) if negatives else None


def _on(conditioning: Mapping[str, torch.Tensor], device: torch.device) -> Conditioning:
    return {name: tensor.to(device) for name, tensor in conditioning.items()}
