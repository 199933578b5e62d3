"""Flow-GRPO (arXiv 2505.05470): clipped policy gradient on the stochastic denoising steps. Loads without torch.

Minimised is the mean of L over rows; a row is one noisy step x -> x' of one sample, whose reward is r:

    L   = max(-A rho, -A clip(rho, 1 - clip_ratio, 1 + clip_ratio)) + kl_coef KL(policy, reference)
    rho = exp(lp - lp_old),    lp = mean over latent elements of log N(x'; mu, std^2)
    A   = (r - mean of the prompt's group) / (std of rewards + advantage_epsilon), clamped to +- advantage_clip
    KL  = mean((mu - mu_ref)^2) / (2 std^2)

mu and std are those of the step kernel under the policy. The std of rewards is that of all of them (`global_std`) or of
the group. With `kl_kind` 'published' KL is divided by the published std^2, which for the kernel 'sde' lacks -dt.
Source: the publication, as implemented by flow_grpo and VeRL-Omni.
"""

from omni_portable.algorithms.flow_grpo.options import FlowGRPOOptions
from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="flow_grpo",
    summary="Flow-GRPO: group-relative advantages and a clipped policy gradient on stochastic denoising steps",
    target="omni_portable.algorithms.flow_grpo.algorithm:FlowGRPO",
    options=FlowGRPOOptions,
    capabilities={
        "kind": "diffusion",
        "needs_log_probs": True,
        "min_group_size": 2,
        "step_kinds": ("sde", "cps", "dance_sde"),
    },
)
