"""DGPO as an algorithm: whole groups share noise and level and stay in one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.advantages import group_members
from omni_portable.algorithms.base import DiffusionAlgorithm, as_denoising, required
from omni_portable.algorithms.dgpo import DGPOOptions
from omni_portable.algorithms.diffusion_losses.dgpo import dgpo_loss
from omni_portable.algorithms.noise_levels import draw_noise_levels
from omni_portable.algorithms.stochastic import advantages_by
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, RowKind, Rows, Selection
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.rollout import Schedule


class DGPO(DiffusionAlgorithm):
    """See :func:`dgpo_loss`."""

    name = "dgpo"
    row_kind: RowKind = "noised"

    def __init__(self, options: DGPOOptions) -> None:
        self.options = options
        self.requires = options.requires()

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        return advantages_by(self.options, rewards, groups)

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """Every sample, group by group.

        Raises:
            DataError: groups of different sizes.
        """
        members = group_members(groups)
        sizes = {len(indices) for indices in members.values()}
        if len(sizes) > 1:
            raise DataError(f"dgpo trains on whole groups of one size, but there are groups of {sorted(sizes)} samples")
        order = [index for indices in members.values() for index in indices]
        return Selection(order, [groups[index] for index in order], unit=sizes.pop())

    def noise_levels(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        return draw_noise_levels(self.options, schedule, keys, seed)

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        seen, o = as_denoising(replay), self.options
        return dgpo_loss(
            seen.velocity,
            required(seen.reference_velocity, "reference"),
            seen.noise - seen.clean,
            rows.advantage,
            required(rows.unit, "group of a"),
            beta=o.beta,
            advantage_clip=o.advantage_clip,
            clip_ratio=o.clip_ratio,
            old_prediction=seen.old_velocity,
            kl_coef=o.kl_coef,
        )
