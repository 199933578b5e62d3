"""MixGRPO (arXiv 2507.21802): Flow-GRPO in a short window of stochastic steps that slides. Loads without torch.

Steps start .. start + window_size - 1 are noisy and trained on, all others are ODE steps. 'progressive': start =
min(low + window_size floor((round - 1) / rounds_per_window), high - window_size); 'random': drawn for each rollout.
On the steps of the window the loss is Flow-GRPO's (arXiv 2505.05470), with its advantages A and log-probs lp:

    L   = max(-A rho, -A clip(rho, 1 - clip_ratio, 1 + clip_ratio)) + kl_coef KL(policy, reference)
    rho = exp(lp - lp_old),    A = (r - mean of the prompt's group) / (std of rewards + advantage_epsilon)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from omni_portable.algorithms.flow_grpo.options import FlowGRPOOptions
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class MixGRPOOptions(FlowGRPOOptions):
    """Keys of `algorithm` for 'mix_grpo': those of 'flow_grpo', with a sliding window."""

    window_mode: Literal["all", "fixed", "random", "subset", "progressive"] = "progressive"
    """'progressive' slides from the noisy end on; 'random' puts the window anywhere in its range."""
    window_size: int = 2
    """Stochastic steps; all others are ODE steps."""
    window_range: list[int] = field(default_factory=lambda: [0, 5])
    """[low, high) that the window slides over."""


SPEC = PluginSpec(
    name="mix_grpo",
    summary="MixGRPO: Flow-GRPO with a sliding window of stochastic steps, ODE steps elsewhere",
    target="omni_portable.algorithms.mix_grpo.algorithm:MixGRPO",
    options=MixGRPOOptions,
    capabilities={
        "kind": "diffusion",
        "needs_log_probs": True,
        "min_group_size": 2,
        "step_kinds": ("sde", "cps", "dance_sde"),
    },
)
