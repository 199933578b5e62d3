"""Clipped policy-gradient losses of token sequences: PPO with dual clip, and GSPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_portable.algorithms.token_losses.aggregation import Aggregation, aggregate, masked, masked_mean

AGGREGATED = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")
"""Metrics of which the scalar losses give the mean."""


@dataclass(frozen=True)
class TokenLoss:
    """A scalar loss with gradient, and scalar metrics (means over response tokens)."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@dataclass(frozen=True)
class TokenTerms:
    """Loss of each token (B, T) with gradient, and metrics of each (B, T); padding holds anything."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


def ppo_clip_terms(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 3.0,
) -> TokenTerms:
    """:func:`ppo_clip_loss` before it is aggregated."""
    log_ratio = (log_prob - old_log_prob).clamp(-20.0, 20.0)
    ratio = torch.exp(log_ratio)
    plain, clipped = _surrogates(ratio, advantages, clip_low, clip_high)
    worst = torch.maximum(plain, clipped)
    cap = -advantages * dual_clip
    negative = advantages < 0.0
    losses = torch.where(negative, torch.minimum(cap, worst), worst)
    return TokenTerms(losses, _metrics(plain, clipped, ratio, log_ratio, ((worst > cap) & negative).float()))


def gspo_terms(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> TokenTerms:
    """:func:`gspo_loss` before it is aggregated."""
    log_ratio = log_prob - old_log_prob
    lengths = mask.sum(dim=-1, keepdim=True).clamp(min=1.0)
    of_sequence = masked(log_ratio, mask).sum(dim=-1, keepdim=True) / lengths
    per_token = (log_prob - log_prob.detach() + of_sequence.detach()).clamp(max=10.0)
    ratio = torch.exp(per_token)
    plain, clipped = _surrogates(ratio, advantages, clip_low, clip_high)
    losses = torch.maximum(plain, clipped)
    return TokenTerms(losses, _metrics(plain, clipped, ratio, log_ratio, torch.zeros_like(mask)))


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
    """max(-A rho, -A clip(rho, 1 - low, 1 + high)) per token, rho = exp(lp - lp_old) with the difference in +- 20.

    Where A < 0 it is also capped at -A dual_clip.

    Args:
        log_prob / old_log_prob / advantages / mask: (B, T) fp32; log_prob with gradient.
        clip_low / clip_high: the ratio is clipped to [1 - low, 1 + high].
        dual_clip: > 1.

    Source: PPO (arXiv 1707.06347), dual clip (arXiv 1912.09729), as implemented by verl.
    """
    terms = ppo_clip_terms(
        log_prob, old_log_prob, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    return _aggregated(terms, mask, aggregation)


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
    """max(-A s, -A clip(s, 1 - low, 1 + high)) per token, s = exp(mean over the sequence's tokens of lp - lp_old).

    Every token carries the value of s and the gradient of its own log-prob (stop-gradient trick);
    log s is capped at 10.

    Source: GSPO (arXiv 2507.18071), GSPO-token form, as implemented by verl.
    """
    terms = gspo_terms(log_prob, old_log_prob, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    return _aggregated(terms, mask, aggregation)


def _aggregated(terms: TokenTerms, mask: torch.Tensor, aggregation: Aggregation) -> TokenLoss:
    metrics = {name: masked_mean(terms.metrics[name], mask) for name in AGGREGATED}
    return TokenLoss(aggregate(terms.loss, mask, aggregation), metrics)


def _surrogates(
    ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return -advantages * ratio, -advantages * ratio.clamp(1.0 - low, 1.0 + high)


def _metrics(
    plain: torch.Tensor,
    clipped: torch.Tensor,
    ratio: torch.Tensor,
    log_ratio: torch.Tensor,
    capped: torch.Tensor,
) -> dict[str, torch.Tensor]:
    return {
        "actor/pg_clipfrac": (clipped > plain).float(),
        "actor/ppo_kl": -log_ratio.detach(),
        "actor/pg_clipfrac_lower": capped,
        "actor/ratio": ratio.detach(),
    }
