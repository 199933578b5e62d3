"""Preference losses of pairs of responses."""

from __future__ import annotations

from typing import Literal

import torch

from omni_portable.algorithms.token_losses.aggregation import masked

PreferenceLoss = Literal["sigmoid", "ipo"]


def sequence_log_prob(log_prob: torch.Tensor, mask: torch.Tensor, *, mean: bool = False) -> torch.Tensor:
    """(B,) sum over response tokens of (B, T) log-probs, or their mean."""
    total = masked(log_prob, mask).sum(dim=-1)
    return total / mask.sum(dim=-1).clamp(min=1.0) if mean else total


def dpo_margins(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """(P,) h = (chosen - rejected) of the policy minus that of the reference; rows are chosen, rejected, chosen, ..."""
    return (policy[0::2] - policy[1::2]) - (reference[0::2] - reference[1::2])


def dpo_loss(margin: torch.Tensor, *, beta: float, label_smoothing: float, kind: PreferenceLoss) -> torch.Tensor:
    """(P,) loss of margins h.

    - 'sigmoid': -(1 - s) log sigma(beta h) - s log sigma(-beta h), DPO (arXiv 2305.18290) with label smoothing s.
    - 'ipo': (h - 1 / (2 beta))^2, IPO (arXiv 2310.12036).
    """
    if kind == "ipo":
        return (margin - 1.0 / (2.0 * beta)) ** 2
    log_sigmoid = torch.nn.functional.logsigmoid
    return -(1.0 - label_smoothing) * log_sigmoid(beta * margin) - label_smoothing * log_sigmoid(-beta * margin)
