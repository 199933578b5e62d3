"""Measurements on real trajectories before any weight changes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.rollout import Trajectory
from omni_portable.contracts.tokens import AnyTrajectory, TokenTrajectory
from omni_portable.contracts.training import TrainEngine
from omni_portable.trainer.consistency import largest_gap, logprob_metrics, stack_log_probs
from omni_portable.trainer.stages import take_samples


def row_timesteps(trajectories: Sequence[AnyTrajectory]) -> torch.Tensor | None:
    """(N, W) model timesteps of the recorded transitions; None for tokens, which have none."""
    rows = []
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            return None
        schedule = trajectory.request.schedule
        sigmas = torch.tensor(schedule.sigmas, dtype=torch.float32)
        rows.append(sigmas[trajectory.step_indices] * schedule.timestep_scale)
    return torch.stack(rows)


def agreement(actor: torch.Tensor, trajectories: Sequence[AnyTrajectory], version: int | None) -> dict[str, float]:
    """Two things that must not be mixed up: how far two engines differ under the same weights, and how far the policy
    has moved since a sample was drawn.

    Args:
        actor: (N, W) log-probs of the trajectories as recomputed before this round's updates.
        version: the policy version that the actor's weights are; None where it has trained beyond every version.

    Returns:
        :func:`logprob_metrics` of the transitions and tokens of that version, and ``policy_lag/...`` of the others;
        a response that was interrupted may have both.
    """
    rollout = stack_log_probs(trajectories)
    same = _drawn_by(version, trajectories, rollout.shape[1])
    metrics: dict[str, float] = {}
    rows = same.any(dim=1)
    if rows.any():
        own = [t for t, kept in zip(trajectories, rows.tolist(), strict=True) if kept]
        left, right = (part.masked_fill(~same, torch.nan)[rows] for part in (actor, rollout))
        metrics |= logprob_metrics(left, right, row_timesteps(own))
    if not same.all():
        gap = (actor[~same] - rollout[~same]).double().abs()
        gap = gap[~gap.isnan()]
        metrics |= {
            "policy_lag/samples": float((~same).any(dim=1).sum()),
            "policy_lag/logprob_abs_diff/mean": gap.mean().item(),
            "policy_lag/logprob_abs_diff/max": gap.max().item(),
        }
    return metrics


def _drawn_by(version: int | None, trajectories: Sequence[AnyTrajectory], width: int) -> torch.Tensor:
    """(N, W) bool: what that version drew; after the end of a response, as its last token."""
    same = torch.zeros(len(trajectories), width, dtype=torch.bool)
    for row, trajectory in enumerate(trajectories):
        tags = trajectory.policy_versions if isinstance(trajectory, TokenTrajectory) else None
        if tags is None:
            same[row] = trajectory.policy_version == version
        else:
            same[row, : len(tags)] = tags == version
            same[row, len(tags) :] = same[row, len(tags) - 1].item()
    return same


def batch_shape_gaps(actor: TrainEngine, batch: TrainBatch, shapes: Sequence[int]) -> dict[str, float]:
    """Largest absolute log-prob gap of rollout and actor when the same transitions are scored in batches of any size.

    Returns:
        ``rollout_corr/batch_shape_gap/<size>`` and ``/max``; sizes above the batch are left out.
    """
    metrics: dict[str, float] = {}
    for size in sorted({s for s in shapes if s <= len(batch.trajectories)}):
        part = take_samples(batch, slice(size))
        gap = largest_gap(actor.log_probs(part), stack_log_probs(part.trajectories))
        metrics[f"rollout_corr/batch_shape_gap/{size}"] = gap
    if metrics:
        metrics["rollout_corr/batch_shape_gap/max"] = max(metrics.values())
    return metrics
