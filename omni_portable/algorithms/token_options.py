"""Options that several token algorithms have in common. Torch-free.

Names and defaults are verl's where it has them; an algorithm overrides what its own publication sets otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.algorithms.options import require, require_denominator
from omni_portable.algorithms.token_losses.names import Aggregation, KLName
from omni_portable.contracts.algorithm import Requires


@dataclass(frozen=True)
class TokenOptions:
    """For algorithms with a loss per token."""

    aggregation: Aggregation = "token-mean"
    """How losses of tokens become one number: the mean over all tokens of a mini-batch, or over sequences of their
    sum, their mean, or their sum divided by max_new_tokens. Exact whatever the micro-batches are."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy (the weights before training); 0 turns it off."""
    kl_estimator: KLName = "k3"
    """Estimate per sampled token with d = log pi - log pi_ref: k1 d, k2 d^2 / 2, k3 exp(-d) + d - 1, or abs |d|. As a
    loss term k1 has no gradient on average."""
    entropy_coef: float = 0.0
    """Weight of the entropy that is added to the objective; 0 turns it off."""

    def __post_init__(self) -> None:
        """Refuse values that no data could make work (`ConfigError`)."""
        require(self.kl_coef >= 0.0, "kl_coef", self.kl_coef, "0 (off) or positive")
        require(self.entropy_coef >= 0.0, "entropy_coef", self.entropy_coef, "0 (off) or positive")

    def requires(self) -> Requires:
        """The policies besides the current one that the loss compares with."""
        return Requires(reference_policy=self.kl_coef > 0.0)


@dataclass(frozen=True)
class ClipOptions(TokenOptions):
    """For clipped policy gradients with group-relative advantages."""

    clip_low: float = 0.2
    """Ratios below 1 - this are clipped."""
    clip_high: float = 0.2
    """Ratios above 1 + this are clipped."""
    normalize_by_std: bool = True
    """Divide differences to the group's mean by the group's std."""
    std_ddof: int = 1
    """1: unbiased std (verl); 0: population std."""
    advantage_epsilon: float = 1e-6
    """Added to the std."""

    def __post_init__(self) -> None:
        """Refuse a clip range that leaves nothing (`ConfigError`)."""
        super().__post_init__()
        require(0.0 < self.clip_low < 1.0, "clip_low", self.clip_low, "between 0 and 1")
        require(self.clip_high > 0.0, "clip_high", self.clip_high, "positive")
        require(self.std_ddof in (0, 1), "std_ddof", self.std_ddof, "0 or 1")
        require_denominator("advantage_epsilon", self.advantage_epsilon)


@dataclass(frozen=True)
class DualClipOptions(ClipOptions):
    """For clipped policy gradients per token."""

    dual_clip: float = 3.0
    """Where the advantage is negative the loss is capped at -A times this; above 1."""

    def __post_init__(self) -> None:
        """Refuse a cap that is inside the clip range (`ConfigError`)."""
        super().__post_init__()
        require(self.dual_clip > 1.0, "dual_clip", self.dual_clip, "above 1")
