"""DiffusionNFT (arXiv 2509.16117): negative-aware fine-tuning on the forward process. Loads without torch.

Samples of the old policy are noised anew, x_t = (1 - t) clean + t noise. With beta = mix_beta, c = advantage_clip:

    L  = c (r L+ + (1 - r) L-) / beta + reference_kl_coef mean((v - v_ref)^2)
    v+ = beta v + (1 - beta) v_old,    v- = (1 + beta) v_old - beta v
    L+- = mean(d^2) / max(mean|d|, adaptive_weight_min),    d = x_t - t v+- - clean
    r  = clamp(A / (2 c) + 1/2, 0, 1),    A = (reward - mean of the group) / (std of rewards + advantage_epsilon)

After a round the old policy becomes d old + (1 - d) new, with the decay d of `old_policy_schedule`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.options import AdvantageOptions, NoiseLevelOptions, require, require_denominator
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class NFTOptions(NoiseLevelOptions, AdvantageOptions):
    """Keys of `algorithm` for 'diffusion_nft' and 'omni_nft'."""

    mix_beta: float = 0.5
    """How far the implicit good and bad policies lie from the old one; 0.1 in the OCR recipe."""
    advantage_mode: Literal["continuous", "positive_only", "negative_only", "one_only", "binary"] = "continuous"
    """How a clamped advantage becomes the probability of being a good sample."""
    adaptive_weight_min: float = 1e-5
    """Least denominator of the self-normalised error of a clean sample."""
    reference_kl_coef: float = 0.0
    """Weight of the squared distance of velocities to the reference policy; 1e-4 in the published recipe."""
    old_policy_schedule: Literal["fixed", "copy", "linear_to_0_5", "delayed_linear_to_0_999"] = "copy"
    """Decay of the old policy, which draws the rollouts: 'copy' 0; 'linear_to_0_5' min(0.001 round, 0.5);
    'delayed_linear_to_0_999' 0 below round 75, then min(0.0075 (round - 75), 0.999); 'fixed' old_policy_decay."""
    old_policy_decay: float = 0.0
    """Decay d of old <- d old + (1 - d) new for the schedule 'fixed'."""
    old_policy_interval: int = 1
    """Rounds between updates of the old policy."""

    def __post_init__(self) -> None:
        """Refuse values that leave nothing to learn (`ConfigError`)."""
        NoiseLevelOptions.__post_init__(self)
        AdvantageOptions.__post_init__(self)
        require(self.mix_beta > 0.0, "mix_beta", self.mix_beta, "positive")
        require_denominator("adaptive_weight_min", self.adaptive_weight_min)
        require(self.reference_kl_coef >= 0.0, "reference_kl_coef", self.reference_kl_coef, "0 (off) or positive")
        require(0.0 <= self.old_policy_decay < 1.0, "old_policy_decay", self.old_policy_decay, "at least 0, below 1")
        require(self.old_policy_interval >= 1, "old_policy_interval", self.old_policy_interval, "at least 1")

    def decay(self, round_number: int) -> float:
        """Decay of the old policy after a round (1 for the first)."""
        if self.old_policy_schedule == "fixed":
            return self.old_policy_decay
        if self.old_policy_schedule == "linear_to_0_5":
            return min(0.001 * round_number, 0.5)
        if self.old_policy_schedule == "delayed_linear_to_0_999":
            return min(0.0075 * max(0, round_number - 75), 0.999)
        return 0.0

    def requires(self) -> Requires:
        """The old policy draws the rollouts; the reference where its distance has a weight."""
        return Requires(old_policy=True, reference_policy=self.reference_kl_coef > 0.0)


CAPABILITIES = {"kind": "diffusion", "needs_log_probs": False, "min_group_size": 2}

SPEC = PluginSpec(
    name="diffusion_nft",
    summary="DiffusionNFT: trains on clean samples with fresh noise, towards the better half; no log-probs are stored",
    target="omni_portable.algorithms.diffusion_nft.algorithm:DiffusionNFT",
    options=NFTOptions,
    capabilities=CAPABILITIES,
)
