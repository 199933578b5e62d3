"""DanceGRPO (arXiv 2505.07818): Flow-GRPO's objective with DanceGRPO's SDE. Loads without torch.

A noisy step from sigma to sigma' = sigma + dt, with x0 = x - sigma v and eta = noise_level:

    x' = x + v dt - 1/2 eta^2 s dt + eta sqrt(-dt) e,    score s = -(x - (1 - sigma) x0) / sigma^2

On those steps, with std = eta sqrt(-dt) and mu = x' without its noise term, as in Flow-GRPO (arXiv 2505.05470):

    L   = max(-A rho, -A clip(rho, 1 - clip_ratio, 1 + clip_ratio)) + kl_coef KL(policy, reference)
    rho = exp(lp - lp_old),    lp = mean over latent elements of log N(x'; mu, std^2)
    A   = (r - mean of the prompt's group) / (std of rewards + advantage_epsilon), clamped to +- advantage_clip
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.flow_grpo.options import FlowGRPOOptions
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class DanceGRPOOptions(FlowGRPOOptions):
    """Keys of `algorithm` for 'dance_grpo': those of 'flow_grpo' with another kernel."""

    step_kind: Literal["sde", "cps", "dance_sde"] = "dance_sde"
    """'dance_sde': constant noise level eta sqrt(-dt)."""
    noise_level: float = 1.2
    """Eta; 1.2 in VeRL-Omni's Wan2.2 recipe."""


SPEC = PluginSpec(
    name="dance_grpo",
    summary="DanceGRPO: clipped policy gradient with the constant-noise SDE, for image and video models",
    target="omni_portable.algorithms.dance_grpo.algorithm:DanceGRPO",
    options=DanceGRPOOptions,
    capabilities={
        "kind": "diffusion",
        "needs_log_probs": True,
        "min_group_size": 2,
        "step_kinds": ("sde", "cps", "dance_sde"),
    },
)
