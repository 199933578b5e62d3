"""Diffusion-DPO as an algorithm: pairs from scored groups, a shared noise and level per pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.base import DiffusionAlgorithm, as_denoising, required
from omni_portable.algorithms.diffusion_dpo import DiffusionDPOOptions
from omni_portable.algorithms.diffusion_losses.dpo import diffusion_dpo_loss
from omni_portable.algorithms.noise_levels import draw_noise_levels
from omni_portable.algorithms.pairs import preferred_pairs
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, RowKind, Rows, Selection
from omni_portable.contracts.rollout import Schedule


class DiffusionDPO(DiffusionAlgorithm):
    """See :func:`diffusion_dpo_loss`."""

    name = "diffusion_dpo"
    row_kind: RowKind = "noised"

    def __init__(self, options: DiffusionDPOOptions) -> None:
        self.options = options
        self.requires = options.requires()

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """Best and worst of every group, adjacent; groups without a preference are left out (`keep_ties`)."""
        kept = preferred_pairs(groups, rewards.tolist(), self.options.keep_ties)
        return Selection(kept, [groups[index] for index in kept], unit=2)

    def noise_levels(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        return draw_noise_levels(self.options, schedule, keys, seed)

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        """The pair's loss on both of its rows, so that the mean over rows is the mean over pairs."""
        seen = as_denoising(replay)
        reference = required(seen.reference_velocity, "reference")
        pairs = diffusion_dpo_loss(seen.velocity, reference, seen.noise, seen.clean, beta=self.options.beta)
        both = {name: values.repeat_interleave(2) for name, values in pairs.metrics.items()}
        return LossRows(pairs.loss.repeat_interleave(2), both)
