"""Clipped policy-gradient losses of token sequences: PPO with dual clip, and GSPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_portable.algorithms.token_losses.aggregation import Aggregation, aggregate, masked, masked_mean


@dataclass(frozen=True)
class TokenLoss:
    """A scalar loss with gradient, and scalar metrics (means over response tokens)."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


def ppo_clip_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 3.0,
    aggregation: Aggregation = "token-mean",
) -> TokenLoss:
    """PPO's clipped surrogate per token; where A < 0 the loss is also capped at -A dual_clip.

    Args:
        log_prob / old_log_prob / advantages / mask: (B, T) fp32; log_prob with gradient.
        clip_low / clip_high: the ratio is clipped to [1 - low, 1 + high].
        dual_clip: > 1.

    Source: PPO (arXiv 1707.06347), dual clip (arXiv 1912.09729), as implemented by verl.
    """
    log_ratio = (log_prob - old_log_prob).clamp(-20.0, 20.0)
    ratio = torch.exp(log_ratio)
    plain, clipped = _surrogates(ratio, advantages, clip_low, clip_high)
    worst = torch.maximum(plain, clipped)
    cap = -advantages * dual_clip
    negative = advantages < 0.0
    losses = torch.where(negative, torch.minimum(cap, worst), worst)
    return TokenLoss(
        aggregate(losses, mask, aggregation),
        _metrics(plain, clipped, log_ratio, mask, ((worst > cap) & negative).float()),
    )


def gspo_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    aggregation: Aggregation = "seq-mean-token-mean",
) -> TokenLoss:
    """Clipped surrogate on the sequence's length-normalised ratio s = exp(mean over its tokens of lp - lp_old).

    Every token carries the value of s and the gradient of its own log-prob (stop-gradient trick);
    log s is capped at 10.

    Source: GSPO (arXiv 2507.18071), GSPO-token form, as implemented by verl.
    """
    log_ratio = log_prob - old_log_prob
    lengths = mask.sum(dim=-1, keepdim=True).clamp(min=1.0)
    of_sequence = masked(log_ratio, mask).sum(dim=-1, keepdim=True) / lengths
    per_token = (log_prob - log_prob.detach() + of_sequence.detach()).clamp(max=10.0)
    plain, clipped = _surrogates(torch.exp(per_token), advantages, clip_low, clip_high)
    losses = torch.maximum(plain, clipped)
    return TokenLoss(
        aggregate(losses, mask, aggregation), _metrics(plain, clipped, log_ratio, mask, torch.zeros_like(mask))
    )


def _surrogates(
    ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return -advantages * ratio, -advantages * ratio.clamp(1.0 - low, 1.0 + high)


def _metrics(
    plain: torch.Tensor, clipped: torch.Tensor, log_ratio: torch.Tensor, mask: torch.Tensor, capped: torch.Tensor
) -> dict[str, torch.Tensor]:
    return {
        "actor/pg_clipfrac": masked_mean((clipped > plain).float(), mask),
        "actor/ppo_kl": masked_mean(-log_ratio.detach(), mask),
        "actor/pg_clipfrac_lower": masked_mean(capped, mask),
    }
