"""Correction for a rollout engine whose log-probs differ from the actor's at the same weights.

With q = log pi_old - log pi_rollout per step (pi_old: the actor before its update), importance weights exp(q) multiply
each row's loss, and samples whose statistics leave their bounds are rejected. As in VeRL-Omni's and verl's rollout
correction; the bounds of k1 are those of pi_old / pi_rollout here, which published code inverts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from omni_portable.config.correction import parse_bounds
from omni_portable.config.schema import RolloutCorrectionConfig

LIMIT = 20.0
"""Log-ratios are clamped to +- this before they are exponentiated."""


@dataclass(frozen=True)
class Correction:
    """What the correction found for N samples of W steps (or tokens).

    Args:
        weights: (N, W) fp32 factors of each row's loss, detached.
        kept: (N,) bool, samples that are trained on.
        metrics: ``rollout_corr/...``.
    """

    weights: torch.Tensor
    kept: torch.Tensor
    metrics: dict[str, float]


def correct(
    actor: torch.Tensor,
    rollout: torch.Tensor,
    config: RolloutCorrectionConfig,
    mask: torch.Tensor | None = None,
) -> Correction:
    """Weights and rejections from log-probs (N, W) fp32 of the same steps under the actor and the rollout engine.

    Args:
        mask: (N, W) bool, False where a response has ended: what stands there counts nowhere, and its weight is 0. None
            takes every step.
    """
    mask = torch.ones_like(rollout, dtype=torch.bool) if mask is None else mask
    q = torch.where(mask, actor - rollout, 0.0).detach().double()
    weights = importance_weights(q, config, mask).float()
    kept = torch.ones(len(q), dtype=torch.bool)
    metrics = _weight_metrics(weights[mask])
    for name, text in sorted(config.reject.items()):
        inside = within_bounds(q, name, text, mask)
        metrics[f"rollout_corr/rejected/{name}"] = (~inside).double().mean().item()
        kept &= inside
    metrics["rollout_corr/rejected"] = (~kept).double().mean().item()
    return Correction(weights, kept, metrics)


def importance_weights(
    q: torch.Tensor, config: RolloutCorrectionConfig, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """(N, W) exp(q) per step, or exp(sum q) of the trajectory at each of its steps; truncated from above at
    `threshold` (and at `lower` from below, where rows are set to 0 instead); 'off' gives ones.

    Args:
        q: 0 where the mask is False; there the weights are 0.
    """
    inside = torch.ones_like(q) if mask is None else mask.to(q.dtype)
    if config.importance == "off":
        return inside
    log_weight = q if config.importance == "step" else q.sum(dim=1, keepdim=True).expand_as(q)
    weights = log_weight.clamp(-LIMIT, LIMIT).exp()
    if config.lower > 0.0:
        weights = torch.where(
            (weights < config.lower) | (weights > config.threshold), torch.zeros_like(weights), weights
        )
    else:
        weights = weights.clamp(max=config.threshold)
    weights = weights * inside
    return weights / (weights.sum() / inside.sum()) if config.normalize and bool(weights.any()) else weights


def within_bounds(q: torch.Tensor, statistic: str, text: str, mask: torch.Tensor | None = None) -> torch.Tensor:
    """(N,) bool: the sample's statistic lies within its bounds.

    Args:
        q: (N, W), 0 where the mask is False.
        statistic: 'LEVEL_KIND' with LEVEL 'mean', 'sum' or 'max' over the steps and KIND 'k1' (q itself, bounds on
            exp(q) as 'LOW_HIGH' or 'HIGH' for [1/HIGH, HIGH]), 'k2' (q^2 / 2) or 'k3' (exp(q) - 1 - q), bounds 'HIGH'.

    Raises:
        ConfigError: as :func:`parse_bounds`.
    """
    low, high = parse_bounds(statistic, text)
    level, _, kind = statistic.partition("_")
    values = {"k1": q, "k2": 0.5 * q**2, "k3": torch.expm1(q.clamp(-LIMIT, LIMIT)) - q}[kind]
    counts = q.shape[1] if mask is None else mask.sum(dim=1)
    sums = values.sum(dim=1)
    reduced = {"max": values.amax(dim=1), "sum": sums, "mean": sums / counts}[level]
    return (reduced >= low) & (reduced <= high)


def _weight_metrics(weights: torch.Tensor) -> dict[str, float]:
    """Mean, extremes and effective sample size 1 / mean((w / mean w)^2), a share of the batch."""
    values = weights.double()
    mean = values.mean()
    share = 1.0 / ((values / mean) ** 2).mean() if mean > 0 else torch.zeros(())
    figures: Mapping[str, torch.Tensor] = {
        "mean": mean,
        "max": values.max(),
        "min": values.min(),
        "eff_sample_size": share,
    }
    return {f"rollout_corr/rollout_is_{name}": value.item() for name, value in figures.items()}
