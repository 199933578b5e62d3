"""DGPO: direct preference of the good half of a group over the bad half."""

from __future__ import annotations

import torch

from omni_portable.contracts.algorithm import LossRows
from omni_portable.samplers.reduce import row_mean


def dgpo_loss(
    prediction: torch.Tensor,
    reference_prediction: torch.Tensor,
    target: torch.Tensor,
    advantage: torch.Tensor,
    group: torch.Tensor,
    *,
    beta: float,
    advantage_clip: float,
    clip_ratio: float = 0.0,
    old_prediction: torch.Tensor | None = None,
    kl_coef: float = 0.0,
) -> LossRows:
    """sigmoid(z_g) A e, with e = mean((prediction - target)^2) and z_g = beta mean_g(A (e - e_ref)) held constant.

    Its gradient is that of -log sigmoid(-z_g) / beta, the likelihood that the group's samples of positive advantage
    are preferred over those of negative advantage. Rows whose exp(e_old - e) has left 1 +- clip_ratio in the direction
    of their advantage keep their value and lose their gradient. kl_coef mean((prediction - reference)^2) is added.

    Args:
        prediction: (R, ...) fp32 velocities with gradient; `reference_prediction`, `old_prediction` without.
        target: (R, ...) fp32, noise - clean; noise and level are shared by a group.
        advantage: (R,) fp32 group-relative.
        group: (R,) int64; all rows of a group must be present.
        clip_ratio: 0 turns clipping off; otherwise `old_prediction` is needed.

    Source: Direct Group Preference Optimization (arXiv 2510.08425) with the authors' PPO-style clipping.
    """
    advantage = advantage.clamp(-advantage_clip, advantage_clip)
    error = row_mean((prediction - target) ** 2)
    with torch.no_grad():
        gain = advantage * (error - row_mean((reference_prediction - target) ** 2))
        groups = int(group.max()) + 1
        sums = torch.zeros(groups, dtype=gain.dtype, device=gain.device).index_add_(0, group, gain)
        sizes = torch.zeros_like(sums).index_add_(0, group, torch.ones_like(gain))
        weight = torch.sigmoid(beta * sums / sizes.clamp(min=1.0))[group]
    clipped = torch.zeros_like(error)
    if clip_ratio:
        if old_prediction is None:
            raise ValueError("clip_ratio was given, but no prediction of the old policy")
        ratio = torch.exp(row_mean((old_prediction - target) ** 2) - error.detach())
        far = torch.where(advantage > 0.0, ratio > 1.0 + clip_ratio, ratio < 1.0 - clip_ratio)
        clipped = far.float()
        error = torch.where(far, error.detach(), error)
    loss = weight * advantage * error
    metrics = {
        "actor/dgpo_loss": loss.detach(),
        "actor/dgpo_weight": weight,
        "actor/dsm_loss": error.detach(),
        "actor/pg_clipfrac": clipped,
    }
    if kl_coef:
        kl = row_mean((prediction - reference_prediction) ** 2)
        if clip_ratio:
            kl = torch.where(clipped > 0.0, kl.detach(), kl)
        loss, metrics["actor/kl_loss"] = loss + kl_coef * kl, kl.detach()
    return LossRows(loss, metrics)
