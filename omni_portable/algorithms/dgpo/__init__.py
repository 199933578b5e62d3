"""DGPO (arXiv 2510.08425): direct preference between the halves of a group. Loads without torch.

All samples of a prompt's group are noised alike, x_s = (1 - s) clean + s noise; with e = mean((v - (noise - clean))^2):

    L = sigmoid(z) A e + kl_coef mean((v - v_ref)^2),    z = beta mean over the group of (A (e - e_ref))

z is held constant, e_ref is the error of the reference policy, and A = (r - mean of the group) / (std of rewards +
advantage_epsilon), clamped to +- advantage_clip. The gradient is that of -log sigmoid(-z) / beta. A sample whose
exp(e_old - e) lies beyond 1 +- clip_ratio in the direction of A keeps its value and loses its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.algorithms.options import AdvantageOptions, NoiseLevelOptions, require
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class DGPOOptions(NoiseLevelOptions, AdvantageOptions):
    """Keys of `algorithm` for 'dgpo'."""

    beta: float = 100.0
    """Sharpness of the group's weight; 10 to 100 with a frozen reference."""
    clip_ratio: float = 1e-3
    """Rows whose denoising ratio to the rollout's policy lies beyond 1 +- this lose their gradient; 0 turns it off."""
    kl_coef: float = 1e-3
    """Weight of the squared distance of velocities to the reference policy; 0 turns it off."""
    timestep_fraction: float = 0.6
    """Share of the schedule's steps that each group is trained at."""

    def __post_init__(self) -> None:
        """Refuse values that leave nothing to learn (`ConfigError`)."""
        NoiseLevelOptions.__post_init__(self)
        AdvantageOptions.__post_init__(self)
        require(self.beta > 0.0, "beta", self.beta, "positive")
        require(0.0 <= self.clip_ratio < 1.0, "clip_ratio", self.clip_ratio, "at least 0, below 1")
        require(self.kl_coef >= 0.0, "kl_coef", self.kl_coef, "0 (off) or positive")

    def requires(self) -> Requires:
        """The reference; the rollout's policy where ratios are clipped."""
        return Requires(reference_policy=True, old_policy=self.clip_ratio > 0.0)


SPEC = PluginSpec(
    name="dgpo",
    summary="DGPO: direct preference of a group's better samples over its worse ones, on freshly noised samples",
    target="omni_portable.algorithms.dgpo.algorithm:DGPO",
    options=DGPOOptions,
    capabilities={"kind": "diffusion", "needs_log_probs": False, "min_group_size": 2, "whole_groups": True},
)
