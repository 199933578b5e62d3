"""GRPO-Guard: ratios corrected for their bias and rescaled, so that one clip range fits every denoising step."""

from __future__ import annotations

import torch

from omni_portable.algorithms.clipping import clipped_loss, ratio_metrics
from omni_portable.algorithms.kl import gaussian_kl
from omni_portable.contracts.algorithm import LossRows


def grpo_guard_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantage: torch.Tensor,
    mean: torch.Tensor,
    old_mean: torch.Tensor,
    std: torch.Tensor,
    minus_dt: torch.Tensor,
    *,
    clip_ratio: float,
    advantage_clip: float,
    importance_weight: torch.Tensor | None = None,
) -> LossRows:
    """Clipped loss on ratio = exp((lp - lp_old + b) c), divided by -dt, with c = std and b = KL(mean, old_mean; std).

    b is the expected drop of the log-prob when the mean moves, so that the corrected log-ratio is centred on 0; c
    undoes the growth of log-ratios at steps of small noise.

    Args:
        log_prob / mean: (R,) / (R, ...) fp32 with gradient; the `old_` ones without.
        advantage / importance_weight: (R,) fp32.
        std: (R,) the full transition standard deviation of each row.
        minus_dt: (R,) positive step sizes.

    Published code uses one c = mean(sqrt(-dt)) mean(std_dev) and one mean(sqrt(-dt))^2 for all rows of a call. That is
    the same when a call holds a single step, and depends on the micro-batch when it does not; here both are per row.
    Pass constant tensors (see :func:`shared_scale`) for the published form.

    Source: GRPO-Guard (arXiv 2510.22319), as implemented by VeRL-Omni.
    """
    advantage = advantage.clamp(-advantage_clip, advantage_clip)
    bias = gaussian_kl(mean, old_mean, std)
    clipped = clipped_loss((log_prob - old_log_prob + bias) * std, advantage, clip_ratio, clip_ratio)
    loss = clipped.loss / minus_dt
    if importance_weight is not None:
        loss = loss * importance_weight.detach()
    return LossRows(loss, ratio_metrics(log_prob, old_log_prob, clipped))


def shared_scale(std_dev: torch.Tensor, sqrt_minus_dt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Published (std, minus_dt) for :func:`grpo_guard_loss`: batch means of the flow-SDE's quantities, in every row.

    Args:
        std_dev: (R,) published standard deviation, without sqrt(-dt).
        sqrt_minus_dt: (R,).
    """
    step = sqrt_minus_dt.mean()
    return (step * std_dev.mean()).expand_as(std_dev), (step**2).expand_as(std_dev)
