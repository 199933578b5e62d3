"""From per-token losses to one number. Token tensors are (B, T); masks are 1 on response tokens and 0 on padding."""

from __future__ import annotations

import torch

from omni_portable.algorithms.token_losses.names import AGGREGATIONS, Aggregation
from omni_portable.contracts.errors import ConfigError

__all__ = ["AGGREGATIONS", "Aggregation", "aggregate", "masked", "masked_mean", "row_weights", "total_weight"]


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over tokens with mask 1 (0 if there are none)."""
    return masked(values, mask).sum() / mask.sum().clamp(min=1.0)


def masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` with exact zeros on padding, whatever stands there (0 * inf would be NaN)."""
    return torch.where(mask > 0, values, torch.zeros_like(values)) * mask


def aggregate(losses: torch.Tensor, mask: torch.Tensor, mode: Aggregation) -> torch.Tensor:
    """Scalar loss; the names and meanings are verl's.

    - 'token-mean': over all tokens of the batch.
    - 'seq-mean-token-sum': sum over each sequence, mean over sequences.
    - 'seq-mean-token-mean': mean over each sequence, mean over sequences.
    - 'seq-mean-token-sum-norm': sum over everything, divided by the padded length T (Dr. GRPO).

    Sequences without any token leave numerator and denominator.
    """
    if mode not in AGGREGATIONS:
        raise ConfigError(f"unknown aggregation '{mode}'", choices=AGGREGATIONS)
    if mode == "token-mean":
        return masked_mean(losses, mask)
    sums = masked(losses, mask).sum(dim=-1)
    if mode == "seq-mean-token-sum-norm":
        return sums.sum() / mask.shape[-1]
    lengths = mask.sum(dim=-1)
    per_sequence = sums if mode == "seq-mean-token-sum" else sums / lengths.clamp(min=1.0)
    return masked_mean(per_sequence, (lengths > 0).to(sums.dtype))


def row_weights(mask: torch.Tensor, weights: torch.Tensor, mode: Aggregation, norm: torch.Tensor) -> torch.Tensor:
    """(B, T) weight of each token, so that sum(loss * weight) / :func:`total_weight` is the aggregation of a whole
    mini-batch, of which these B sequences may be a part.

    Args:
        mask: (B, T) fp32.
        weights: (B,) fp32 of the sequences.
        norm: (B,) lengths that 'seq-mean-token-sum-norm' divides by: a constant of the run rather than the padding of
            the batch, and per sequence, so that the mean is over sequences as in the Dr. GRPO paper.
    """
    per_token = weights[:, None] * mask
    if mode == "seq-mean-token-mean":
        return per_token / mask.sum(dim=-1, keepdim=True).clamp(min=1.0)
    if mode == "seq-mean-token-sum-norm":
        return per_token / norm.to(mask.dtype)[:, None]
    return per_token


def total_weight(lengths: torch.Tensor, weights: torch.Tensor, mode: Aggregation) -> float:
    """Denominator of a mini-batch from all its lengths (N,) and weights (N,): tokens or sequences, each by weight."""
    weights = weights.double()
    return float((weights * lengths).sum() if mode == "token-mean" else weights[lengths > 0].sum())
