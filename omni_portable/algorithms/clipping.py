"""The clipped policy-gradient loss per row, shared by the GRPO family."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ClippedLoss:
    """Loss and ratio statistics of R rows, (R,) fp32 each; only `loss` carries a gradient.

    Args:
        loss: max(-A ratio, -A clip(ratio, 1 - low, 1 + high)).
        ratio: pi / pi_old.
        higher / lower: 1 where the ratio lies above 1 + high / below 1 - low.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    higher: torch.Tensor
    lower: torch.Tensor

    @property
    def clipped(self) -> torch.Tensor:
        """1 where the ratio lies outside the clip range, whatever the advantage's sign."""
        return self.higher + self.lower


def clipped_loss(log_ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float) -> ClippedLoss:
    """PPO's clipped surrogate (arXiv 1707.06347) on (R,) log-ratios log pi - log pi_old and advantages."""
    ratio = torch.exp(log_ratio)
    loss = torch.maximum(-advantage * ratio, -advantage * torch.clamp(ratio, 1.0 - low, 1.0 + high))
    seen = ratio.detach()
    return ClippedLoss(loss, seen, (seen - 1.0 > high).float(), (1.0 - seen > low).float())


def ratio_metrics(log_prob: torch.Tensor, old_log_prob: torch.Tensor, clipped: ClippedLoss) -> dict[str, torch.Tensor]:
    """Rows of the metrics that the GRPO family logs.

    Engines average each; of 'actor/ratio' they report 'actor/ratio_mean' and 'actor/ratio_std'.
    """
    return {
        "actor/ppo_kl": (old_log_prob - log_prob).detach(),
        "actor/pg_clipfrac": clipped.clipped,
        "actor/pg_clipfrac_higher": clipped.higher,
        "actor/pg_clipfrac_lower": clipped.lower,
        "actor/ratio": clipped.ratio,
    }
