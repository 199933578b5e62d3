"""Flow-DPPO: rows that have moved too far are dropped by divergence, not by ratio. Loads without torch.

    L   = -A rho, or 0 where K >= kl_mask_threshold and (rho > 1 and A > 0, or rho < 1 and A < 0)
    rho = exp(lp - lp_old),    K = mean((mu - mu_old)^2) / (2 std^2)

for one noisy step x -> x' of a sample: lp = mean over latent elements of log N(x'; mu, std^2), mu_old the mean under
the policy that drew it, A = (r - mean of the prompt's group) / (std of rewards + advantage_epsilon). Without
`scale_kl_by_variance` K is mean((mu - mu_old)^2) / 2. kl_coef KL(policy, reference) is added. Source: VeRL-Omni.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from omni_portable.algorithms.options import StochasticOptions, require
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class FlowDPPOOptions(StochasticOptions):
    """Keys of `algorithm` for 'flow_dppo'. Its loss does not clamp advantages: `advantage_clip` has no effect."""

    kl_mask_threshold: float = 1e-5
    """Divergence of a transition from the rollout's from which on a row that would increase it further is dropped."""
    scale_kl_by_variance: bool = True
    """Divide the squared distance of the means by the transition's variance."""

    def __post_init__(self) -> None:
        """Refuse a threshold that drops everything (`ConfigError`)."""
        super().__post_init__()
        require(self.kl_mask_threshold > 0.0, "kl_mask_threshold", self.kl_mask_threshold, "positive")

    def requires(self) -> Requires:
        """Also the policy that drew the rollout, whose means the loss compares with."""
        return replace(super().requires(), old_policy=True)


SPEC = PluginSpec(
    name="flow_dppo",
    summary="Flow-DPPO: policy gradient without ratio clipping; rows beyond a divergence threshold are dropped",
    target="omni_portable.algorithms.flow_dppo.algorithm:FlowDPPO",
    options=FlowDPPOOptions,
    capabilities={
        "kind": "diffusion",
        "needs_log_probs": True,
        "min_group_size": 2,
        "step_kinds": ("sde", "cps", "dance_sde"),
    },
)
