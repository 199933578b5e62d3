"""GRPO-Guard (arXiv 2510.22319): ratios corrected for bias and scale before they are clipped. Loads without torch.

    L   = max(-A rho, -A clip(rho, 1 - clip_ratio, 1 + clip_ratio)) / (-dt) + kl_coef KL(policy, reference)
    rho = exp((lp - lp_old + b) std),    b = mean((mu - mu_old)^2) / (2 std^2)

for one noisy step x -> x' of a sample: lp = mean over latent elements of log N(x'; mu, std^2), dt < 0 its length,
mu_old the mean under the policy that drew it, A = (r - mean of the prompt's group) / (std of rewards +
advantage_epsilon), clamped to +- advantage_clip. b is how far lp is expected to fall when the mean moves, so that log
rho is centred on 0; the factor std makes it as large at every noise level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from omni_portable.algorithms.options import StochasticOptions, require
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class GRPOGuardOptions(StochasticOptions):
    """Keys of `algorithm` for 'grpo_guard'."""

    clip_ratio: float = 2e-6
    """Corrected ratios beyond 1 +- this are clipped; 2e-6 in the published recipe."""

    def __post_init__(self) -> None:
        """Refuse a clip range that leaves nothing (`ConfigError`)."""
        super().__post_init__()
        require(0.0 < self.clip_ratio < 1.0, "clip_ratio", self.clip_ratio, "between 0 and 1")

    def requires(self) -> Requires:
        """Also the policy that drew the rollout, whose means the loss compares with."""
        return replace(super().requires(), old_policy=True)


SPEC = PluginSpec(
    name="grpo_guard",
    summary="GRPO-Guard: ratios are centred and rescaled per step, so that clipping works at every noise level",
    target="omni_portable.algorithms.grpo_guard.algorithm:GRPOGuard",
    options=GRPOGuardOptions,
    capabilities={
        "kind": "diffusion",
        "needs_log_probs": True,
        "min_group_size": 2,
        "step_kinds": ("sde", "cps", "dance_sde"),
    },
)
