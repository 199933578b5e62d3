"""On-policy distillation of diffusion models. (The KL form is `algorithms.kl.reference_kl` with the teacher's mean.)"""

from __future__ import annotations

import torch

from omni_portable.samplers.reduce import row_mean


def flow_matching_mse(prediction: torch.Tensor, teacher_prediction: torch.Tensor) -> torch.Tensor:
    """(R,) mean squared difference of two velocities (R, ...) fp32; only `prediction` needs a gradient."""
    return row_mean((prediction - teacher_prediction.detach()) ** 2)
