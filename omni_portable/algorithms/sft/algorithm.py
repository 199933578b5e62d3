"""Flow matching as an algorithm: every sample counts the same, whatever its reward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.base import DiffusionAlgorithm, as_denoising
from omni_portable.algorithms.diffusion_losses.distill import flow_matching_mse
from omni_portable.algorithms.noise_levels import draw_noise_levels
from omni_portable.algorithms.sft import SFTOptions
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, RowKind, Rows
from omni_portable.contracts.rollout import Schedule


class SFT(DiffusionAlgorithm):
    """mean((v - (noise - clean))^2) per row (rectified flow, arXiv 2209.03003)."""

    name = "sft"
    row_kind: RowKind = "noised"

    def __init__(self, options: SFTOptions) -> None:
        self.options = options

    def noise_levels(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        return draw_noise_levels(self.options, schedule, keys, seed)

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        seen = as_denoising(replay)
        error = flow_matching_mse(seen.velocity, seen.noise - seen.clean)
        return LossRows(error, {"actor/sft_loss": error.detach()})
