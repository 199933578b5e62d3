"""On-policy distillation of diffusion models: the student's own rollouts, the teacher's predictions. Torch-free.

On the noisy steps of the student's rollouts, where mu and std are the student's transition and v its velocity:

    L = distill_coef mean((mu - mu_teacher)^2) / (2 std^2)      objective 'kl', KL(student, teacher) per latent element
    L = distill_coef mean((v - v_teacher)^2)                    objective 'flow_matching_mse'

The teacher is asked at the student's own latents, so it corrects the student where it really goes. Source: VeRL-Omni.
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
