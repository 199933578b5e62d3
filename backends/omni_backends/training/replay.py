"""Rows that are stored transitions, replayed under the actor's weights in the batch shapes that the rollout used.

Each of a micro-batch's W stored steps is one forward pass of `models.policy.transition`, so that batch shape and row
positions equal those of the rollout's pack and the log-probs are the same bits while the weights are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from omni_backends.training.micro import (
    Common,
    MicroBatch,
    Scored,
    check_equal,
    check_shape,
    denoised,
    pack_common,
    parts,
    sample_weights,
    take,
)
from omni_portable.contracts.algorithm import Replay, Rows, TrainBatch
from omni_portable.contracts.errors import CapabilityError, ConsistencyError, DataError
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import SamplingPlan, Schedule, Trajectory
from omni_portable.models.policy import transition


@dataclass(frozen=True)
class TransitionBatch(MicroBatch):
    """B trajectories; one schedule, plan and guidance scale for all of them.

    Args:
        step_indices: (W, B) int64 on the CPU.
        latents / next_latents: (W, B, ...) fp32 on the device; steps come first so that one step's rows are contiguous
            as they were in the rollout (a strided reduction may add in another order and give other bits).
        old_log_probs: (W, B) fp32 on the device, what ratios are taken against.
        importance_weights: (W, B) fp32 on the device, or None.
    """

    common: Common
    schedule: Schedule
    plan: SamplingPlan
    guidance_scale: float
    step_indices: torch.Tensor
    latents: torch.Tensor
    next_latents: torch.Tensor
    old_log_probs: torch.Tensor
    importance_weights: torch.Tensor | None

    @property
    def num_steps(self) -> int:
        """W, the stored steps of each sample."""
        return self.step_indices.shape[0]

    def forward(self, adapter: DiffusionAdapter, step: int) -> Scored:
        """Score stored step `step` of every sample."""
        scored = transition(
            adapter,
            latents=self.latents[step],
            step_index=self.step_indices[step],
            schedule=self.schedule,
            kind=self.plan.kind,
            noise_level=self.plan.noise_level,
            include_normalizer=self.plan.include_normalizer,
            conditioning=self.common.conditioning,
            negative=self.common.negative,
            guidance_scale=self.guidance_scale,
            next_latents=self.next_latents[step],
        )
        return Scored(scored.velocity, scored.log_prob, scored.mean, scored.std, scored.dt)

    def loss_inputs(self, step: int, scored: Scored, others: Mapping[str, Scored]) -> tuple[Replay, Rows]:
        rows = self.common.kept(self.latents.device)
        means = {f"{policy}_mean": take(other.mean, rows) for policy, other in others.items()}
        teacher = others.get("teacher")
        replay = Replay(
            log_prob=take(scored.log_prob, rows),
            mean=take(scored.mean, rows),
            std=take(scored.std, rows),
            dt=take(scored.dt, rows),
            velocity=take(scored.velocity, rows),
            teacher_velocity=None if teacher is None else take(teacher.velocity, rows),
            **means,
        )
        weights = self.importance_weights
        return replay, Rows(
            old_log_prob=take(self.old_log_probs[step], rows),
            advantage=take(self.common.advantages, rows),
            weight=take(self.common.weights, rows),
            step_kind=self.plan.kind,
            importance_weight=None if weights is None else take(weights[step], rows),
            sample_ids=tuple(i for i, kept in zip(self.common.request_ids, self.common.trained, strict=True) if kept),
        )


def stored_steps(batch: TrainBatch) -> int:
    """W of a batch whose trajectories agree on it.

    Raises:
        DataError: no trajectories, or tensors of the batch that do not fit them.
        ConsistencyError: trajectories with different numbers of stored steps or latent shapes.
        CapabilityError: no stored steps, so that there is nothing to replay.
    """
    if not batch.trajectories:
        raise DataError("the train engine was given a batch without trajectories")
    trajectories = denoised(batch.trajectories)
    lead = trajectories[0]
    for trajectory in trajectories:
        if trajectory.latents.shape != lead.latents.shape or trajectory.next_latents.shape != lead.latents.shape:
            raise ConsistencyError(
                f"request '{trajectory.request.request_id}' stored latents {tuple(trajectory.latents.shape)} and next "
                f"latents {tuple(trajectory.next_latents.shape)}, request '{lead.request.request_id}' "
                f"{tuple(lead.latents.shape)}; a train batch needs one shape"
            )
    count, steps = len(trajectories), lead.step_indices.shape[0]
    if steps == 0:
        raise CapabilityError(
            f"request '{lead.request.request_id}' stored no transitions, which this algorithm replays",
            remedy="use an algorithm whose sampling plan has stochastic steps and records them",
        )
    for name, tensor in (("old_log_probs", batch.old_log_probs), ("importance_weights", batch.importance_weights)):
        if tensor is not None:
            check_shape(name, tensor, (count, steps))
    return steps


def transition_batches(
    adapter: DiffusionAdapter, batch: TrainBatch, size: int, device: torch.device
) -> Iterator[TransitionBatch]:
    """The batch in contiguous parts of at most `size` trajectories, in order; each is packed when it is asked for."""
    slices = parts(batch, size)
    stored_steps(batch)
    weights = sample_weights(batch)
    for part in slices:
        yield _pack(adapter, batch, weights, part, device)


def _pack(
    adapter: DiffusionAdapter, batch: TrainBatch, weights: torch.Tensor, part: slice, device: torch.device
) -> TransitionBatch:
    trajectories = denoised(batch.trajectories[part])
    request = trajectories[0].request
    check_equal(trajectories, replay_facts)
    old = _stack(trajectories, "log_probs") if batch.old_log_probs is None else batch.old_log_probs[part].T
    importance = batch.importance_weights
    return TransitionBatch(
        common=pack_common(adapter, batch, weights, part, device),
        schedule=request.schedule,
        plan=request.plan,
        guidance_scale=request.guidance_scale,
        step_indices=_stack(trajectories, "step_indices").to("cpu"),
        latents=_stack(trajectories, "latents").to(device, torch.float32),
        next_latents=_stack(trajectories, "next_latents").to(device, torch.float32),
        old_log_probs=_rows_first(old, device),
        importance_weights=None if importance is None else _rows_first(importance[part].T, device),
    )


def replay_facts(trajectory: Trajectory) -> Mapping[str, object]:
    """What one forward must have in common; the schedule is also that of the engine that ran it."""
    request = trajectory.request
    if trajectory.schedule_fingerprint != request.schedule.fingerprint:
        raise ConsistencyError(
            f"request '{request.request_id}' carried the schedule {request.schedule.fingerprint} "
            f"({request.schedule.key}), but engine '{trajectory.engine}' ran {trajectory.schedule_fingerprint}",
            remedy="use a rollout engine that takes its sigmas from the request",
        )
    return {
        "schedule": request.schedule.fingerprint,
        "step kernel": request.plan.kind,
        "noise level": request.plan.noise_level,
        "log-prob normaliser": request.plan.include_normalizer,
        "guidance scale": request.guidance_scale,
    }


def _rows_first(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.detach().to(device, torch.float32).contiguous()


def _stack(trajectories: Sequence[Trajectory], name: str) -> torch.Tensor:
    """(W, B, ...) from tensors that start with W."""
    return torch.stack([getattr(trajectory, name).detach() for trajectory in trajectories], dim=1)
