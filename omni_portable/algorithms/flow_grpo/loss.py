"""The Flow-GRPO loss per row, as a pure function."""

from __future__ import annotations

import torch

from omni_portable.algorithms.clipping import clipped_loss, ratio_metrics
from omni_portable.contracts.algorithm import LossRows


def flow_grpo_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantage: torch.Tensor,
    *,
    clip_ratio: float,
    advantage_clip: float,
    importance_weight: torch.Tensor | None = None,
) -> LossRows:
    """max(-A ratio, -A clip(ratio, 1 - c, 1 + c)) with A clamped to +- advantage_clip and ratio = exp(lp - lp_old).

    Args:
        log_prob: (R,) fp32 with gradient; old_log_prob, advantage, importance_weight: (R,) fp32.
        importance_weight: rollout-correction weights that multiply each row's loss (the denominator stays the rows).

    Source: Flow-GRPO (arXiv 2505.05470), as implemented by flow_grpo and VeRL-Omni.
    """
    advantage = advantage.clamp(-advantage_clip, advantage_clip)
    clipped = clipped_loss(log_prob - old_log_prob, advantage, clip_ratio, clip_ratio)
    loss = clipped.loss if importance_weight is None else clipped.loss * importance_weight.detach()
    return LossRows(loss, ratio_metrics(log_prob, old_log_prob, clipped))
