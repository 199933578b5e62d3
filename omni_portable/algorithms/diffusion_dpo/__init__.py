"""Diffusion-DPO (arXiv 2311.12908) for flow matching, online or on given pairs. Loads without torch.

The chosen sample w and the rejected one l of a prompt share noise and level s, x_s = (1 - s) clean + s noise:

    L = -log sigmoid(-beta / 2 ((e_w - e_w,ref) - (e_l - e_l,ref))),    e = mean((v - (noise - clean))^2)

e_ref is the error of the reference policy. Online, w and l are the best and the worst sample of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.options import NoiseLevelOptions, require
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class DiffusionDPOOptions(NoiseLevelOptions):
    """Keys of `algorithm` for 'diffusion_dpo'.

    Online, the best and the worst sample of each prompt make a pair; given pairs (`rollout.engine=dataset`) are
    groups of two whose reward is the preference."""

    beta: float = 100.0
    """Strength of the pull to the reference; errors are means over latent elements, so it is not comparable with
    papers that use sums. 100 in the published recipes, 2000 by default in VeRL-Omni."""
    timesteps: Literal["schedule", "logit_normal"] = "logit_normal"
    """'logit_normal': sigmoid of a normal number, shared by a pair; 'schedule': sigmas of the rollout's schedule."""
    keep_ties: bool = False
    """Train on groups whose rewards are all equal too (the first is then chosen, the last rejected, as published)."""

    def __post_init__(self) -> None:
        """Refuse a beta that prefers nothing (`ConfigError`)."""
        super().__post_init__()
        require(self.beta > 0.0, "beta", self.beta, "positive")

    def requires(self) -> Requires:
        """Pairs, and the reference that gains are measured against."""
        return Requires(reference_policy=True, preference_pairs=True)


SPEC = PluginSpec(
    name="diffusion_dpo",
    summary="Diffusion-DPO: prefers the chosen sample of a pair by how much better than the reference it is denoised",
    target="omni_portable.algorithms.diffusion_dpo.algorithm:DiffusionDPO",
    options=DiffusionDPOOptions,
    capabilities={"kind": "diffusion", "needs_log_probs": False, "min_group_size": 2, "trained_per_group": 2},
)
