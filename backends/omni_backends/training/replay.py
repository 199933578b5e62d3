"""Replay of stored transitions under the actor's weights, in the batch shapes that the rollout used.

A micro-batch is a contiguous run of trajectories; each of its W stored steps is one forward pass of
`models.policy.transition`, so that batch shape and row positions equal those of the rollout's pack and the log-probs
are the same bits while the weights are the same. Nothing here knows how many processes train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from omni_portable.contracts.algorithm import Replay, Rows, TrainBatch
from omni_portable.contracts.errors import CapabilityError, ConsistencyError, DataError
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Conditioning, SamplingPlan, Schedule, Trajectory
from omni_portable.models.policy import Transition, split_conditioning, transition


@dataclass(frozen=True)
class MicroBatch:
    """B trajectories packed for the device; one schedule, plan and guidance scale for all of them.

    Args:
        first: index of the first row in the mini-batch.
        request_ids: of the B rows.
        step_indices: (W, B) int64 on the CPU.
        latents / next_latents: (W, B, ...) fp32 on the device; steps come first so that one step's rows are contiguous
            as they were in the rollout (a strided reduction may add in another order and give other bits).
        old_log_probs: (W, B) fp32 on the device, what ratios are taken against.
        advantages / weights: (B,) fp32 on the device.
        trained: (B,) bool on the CPU, rows of weight above 0.
    """

    first: int
    request_ids: tuple[str, ...]
    schedule: Schedule
    plan: SamplingPlan
    guidance_scale: float
    step_indices: torch.Tensor
    latents: torch.Tensor
    next_latents: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    trained: torch.Tensor
    conditioning: Conditioning
    negative: Conditioning | None

    @property
    def size(self) -> int:
        return len(self.request_ids)

    @property
    def num_steps(self) -> int:
        """W, the stored steps of each row."""
        return self.step_indices.shape[0]


def stored_steps(batch: TrainBatch) -> int:
    """W of a batch whose trajectories agree on it.

    Raises:
        DataError: no trajectories, or tensors of the batch that do not fit them.
        ConsistencyError: trajectories with different numbers of stored steps or latent shapes.
        CapabilityError: no stored steps, so that there is nothing to replay.
    """
    if not batch.trajectories:
        raise DataError("the train engine was given a batch without trajectories")
    lead = batch.trajectories[0]
    for trajectory in batch.trajectories:
        if trajectory.latents.shape != lead.latents.shape or trajectory.next_latents.shape != lead.latents.shape:
            raise ConsistencyError(
                f"request '{trajectory.request.request_id}' stored latents {tuple(trajectory.latents.shape)} and next "
                f"latents {tuple(trajectory.next_latents.shape)}, request '{lead.request.request_id}' "
                f"{tuple(lead.latents.shape)}; a train batch needs one shape"
            )
    count, steps = len(batch.trajectories), lead.step_indices.shape[0]
    if steps == 0:
        raise CapabilityError(
            f"request '{lead.request.request_id}' stored no transitions, which this train engine replays",
            remedy="use an algorithm whose sampling plan has stochastic steps and records them",
        )
    _check_shape("advantages", batch.advantages, (count,))
    if batch.weights is not None:
        _check_shape("weights", batch.weights, (count,))
    if batch.old_log_probs is not None:
        _check_shape("old_log_probs", batch.old_log_probs, (count, steps))
    return steps


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


def micro_batches(
    adapter: DiffusionAdapter, batch: TrainBatch, size: int, device: torch.device
) -> Iterator[MicroBatch]:
    """The batch in contiguous parts of at most `size` trajectories, in order; each is packed when it is asked for."""
    stored_steps(batch)
    weights = sample_weights(batch)
    for first in range(0, len(batch.trajectories), size):
        yield _pack(adapter, batch, weights, slice(first, first + size), device)


def replay_step(adapter: DiffusionAdapter, micro: MicroBatch, step: int) -> Transition:
    """One forward pass that scores stored step `step` (0..W-1) of every row under the adapter's present weights."""
    return transition(
        adapter,
        latents=micro.latents[step],
        step_index=micro.step_indices[step],
        schedule=micro.schedule,
        kind=micro.plan.kind,
        noise_level=micro.plan.noise_level,
        include_normalizer=micro.plan.include_normalizer,
        conditioning=micro.conditioning,
        negative=micro.negative,
        guidance_scale=micro.guidance_scale,
        next_latents=micro.next_latents[step],
    )


def loss_inputs(
    micro: MicroBatch, step: int, scored: Transition, reference_mean: torch.Tensor | None
) -> tuple[Replay, Rows]:
    """What the algorithm sees of one (micro-batch, step): the rows with a weight above 0, R <= B of them.

    Rows of weight 0 are left out rather than multiplied by it, so that a value in them that is not finite, or a mean
    that the algorithm takes over its rows, cannot change a gradient.
    """
    replay = Replay(scored.log_prob, scored.mean, scored.std, scored.dt, scored.velocity, reference_mean)
    rows = Rows(
        old_log_prob=micro.old_log_probs[step],
        advantage=micro.advantages,
        weight=micro.weights,
        step_kind=micro.plan.kind,
        sample_ids=micro.request_ids,
    )
    if bool(micro.trained.all()):
        return replay, rows
    kept = micro.trained.nonzero().flatten()
    index = kept.to(micro.latents.device)
    replay = Replay(
        log_prob=replay.log_prob[index],
        mean=replay.mean[index],
        std=replay.std[index],
        dt=replay.dt[index],
        velocity=replay.velocity[index],
        reference_mean=None if reference_mean is None else reference_mean[index],
    )
    rows = Rows(
        old_log_prob=rows.old_log_prob[index],
        advantage=rows.advantage[index],
        weight=rows.weight[index],
        step_kind=rows.step_kind,
        sample_ids=tuple(micro.request_ids[i] for i in kept.tolist()),
    )
    return replay, rows


def _pack(
    adapter: DiffusionAdapter, batch: TrainBatch, weights: torch.Tensor, part: slice, device: torch.device
) -> MicroBatch:
    trajectories = batch.trajectories[part]
    request = trajectories[0].request
    _check_one_kind(trajectories)
    old = _stack(trajectories, "log_probs") if batch.old_log_probs is None else batch.old_log_probs[part].T
    positive, negative = _collate(adapter, trajectories, device)
    return MicroBatch(
        first=part.start,
        request_ids=tuple(t.request.request_id for t in trajectories),
        schedule=request.schedule,
        plan=request.plan,
        guidance_scale=request.guidance_scale,
        step_indices=_stack(trajectories, "step_indices").to("cpu"),
        latents=_stack(trajectories, "latents").to(device, torch.float32),
        next_latents=_stack(trajectories, "next_latents").to(device, torch.float32),
        old_log_probs=old.detach().to(device, torch.float32).contiguous(),
        advantages=batch.advantages[part].detach().to(device, torch.float32),
        weights=weights[part].to(device),
        trained=weights[part] > 0,
        conditioning=positive,
        negative=negative,
    )


def _check_one_kind(trajectories: Sequence[Trajectory]) -> None:
    """One schedule (as echoed by the engine that ran it), plan and guidance scale for all rows."""
    lead = trajectories[0].request
    for trajectory in trajectories:
        request = trajectory.request
        if trajectory.schedule_fingerprint != request.schedule.fingerprint:
            raise ConsistencyError(
                f"request '{request.request_id}' carried the schedule {request.schedule.fingerprint} "
                f"({request.schedule.key}), but engine '{trajectory.engine}' ran {trajectory.schedule_fingerprint}",
                remedy="use a rollout engine that takes its sigmas from the request",
            )
        for what, mine, first in (
            ("schedule", request.schedule.fingerprint, lead.schedule.fingerprint),
            ("step kernel", request.plan.kind, lead.plan.kind),
            ("noise level", request.plan.noise_level, lead.plan.noise_level),
            ("log-prob normaliser", request.plan.include_normalizer, lead.plan.include_normalizer),
            ("guidance scale", request.guidance_scale, lead.guidance_scale),
        ):
            if mine != first:
                raise ConsistencyError(
                    f"requests '{lead.request_id}' and '{request.request_id}' of one micro-batch differ in {what}: "
                    f"{first} and {mine}"
                )


def _collate(
    adapter: DiffusionAdapter, trajectories: Sequence[Trajectory], device: torch.device
) -> tuple[Conditioning, Conditioning | None]:
    """Positive and negative conditioning batched as the rollout batched them: each by the family's own collation."""
    parts = [split_conditioning(_on(t.conditioning, device)) for t in trajectories]
    negatives = [negative for _, negative in parts if negative is not None]
    if negatives and len(negatives) != len(parts):
        raise ConsistencyError("some trajectories of one micro-batch carry a negative conditioning, others none")
    return adapter.collate([positive for positive, _ in parts]), adapter.collate(negatives) if negatives else None


def _on(conditioning: Mapping[str, torch.Tensor], device: torch.device) -> Conditioning:
    return {name: tensor.to(device) for name, tensor in conditioning.items()}


def _stack(trajectories: Sequence[Trajectory], name: str) -> torch.Tensor:
    """(W, B, ...) from tensors that start with W."""
    return torch.stack([getattr(trajectory, name).detach() for trajectory in trajectories], dim=1)


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise DataError(f"the train batch's {name} have shape {tuple(tensor.shape)}, expected {shape}")
