"""From per-token losses to one number. Token tensors are (B, T); masks are 1 on response tokens and 0 on padding."""

from __future__ import annotations

from typing import Literal

import torch

from omni_portable.contracts.errors import ConfigError

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
AGGREGATIONS: tuple[Aggregation, ...] = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)


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
