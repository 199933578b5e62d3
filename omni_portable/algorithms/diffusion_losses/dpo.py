"""Diffusion-DPO: prefer the chosen sample by how much better than the reference it is denoised."""

from __future__ import annotations

import torch

from omni_portable.contracts.algorithm import LossRows
from omni_portable.samplers.reduce import row_mean


def diffusion_dpo_loss(
    prediction: torch.Tensor,
    reference_prediction: torch.Tensor,
    noise: torch.Tensor,
    latents: torch.Tensor,
    *,
    beta: float,
) -> LossRows:
    """-log sigmoid(z), z = -beta/2 ((e_w - e_w,ref) - (e_l - e_l,ref)), e = mean((prediction - (noise - latents))^2).

    Errors are *means* over latent elements, so beta is not comparable with papers that use sums.

    Args:
        prediction: (2 P, ...) fp32 with gradient, velocities; rows alternate chosen, rejected.
        reference_prediction: the same under the reference policy, on the same noise and timestep.
        noise / latents: (2 P, ...) fp32; a pair shares its noise and timestep.

    Returns:
        P rows, one per pair.

    Raises:
        ValueError: an odd number of rows.

    Source: Diffusion-DPO (arXiv 2311.12908) for flow matching, as implemented by VeRL-Omni.
    """
    if len(prediction) % 2:
        raise ValueError(f"{len(prediction)} rows are no whole number of (chosen, rejected) pairs")
    target = noise - latents
    gain = -0.5 * beta * (row_mean((prediction - target) ** 2) - row_mean((reference_prediction - target) ** 2))
    chosen, rejected = gain[0::2], gain[1::2]
    margin = chosen - rejected
    loss = -torch.nn.functional.logsigmoid(margin)
    return LossRows(
        loss,
        {
            "actor/dpo_loss": loss.detach(),
            "actor/implicit_acc": (margin.detach() > 0.0).float(),
            "rewards/chosen": chosen.detach(),
            "rewards/rejected": rejected.detach(),
            "rewards/margins": margin.detach(),
        },
    )
