"""Flow-GRPO (arXiv 2505.05470): clipped policy gradient on the stochastic denoising steps. Loads without torch."""

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
