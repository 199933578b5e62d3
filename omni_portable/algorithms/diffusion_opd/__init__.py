"""On-policy distillation of diffusion models: the student's own rollouts, the teacher's predictions. Torch-free.

On the noisy steps of the student's rollouts, distill_coef times KL(N(mu, std^2), N(mu_teacher, std^2)) per latent
element, that is mean((mu - mu_teacher)^2) / (2 std^2), or mean((v - v_teacher)^2). As in VeRL-Omni's distillation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.options import StochasticOptions, require
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class DiffusionOPDOptions(StochasticOptions):
    """Keys of `algorithm` for 'diffusion_opd'. Rewards are only logged."""

    objective: Literal["kl", "flow_matching_mse"] = "kl"
    """'kl': KL of the student's transitions from the teacher's; 'flow_matching_mse': squared distance of velocities."""
    distill_coef: float = 1.0
    """Weight of the objective."""

    def __post_init__(self) -> None:
        """Refuse a weight that trains nothing (`ConfigError`)."""
        super().__post_init__()
        require(self.distill_coef > 0.0, "distill_coef", self.distill_coef, "positive")


SPEC = PluginSpec(
    name="diffusion_opd",
    summary="On-policy distillation: the student follows one or several teachers on its own denoising steps",
    target="omni_portable.algorithms.diffusion_opd.algorithm:DiffusionOPD",
    options=DiffusionOPDOptions,
    capabilities={
        "kind": "diffusion",
        "needs_log_probs": True,
        "needs_teacher": True,
        "step_kinds": ("sde", "cps", "dance_sde"),
    },
)
