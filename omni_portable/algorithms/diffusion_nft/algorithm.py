"""DiffusionNFT as an algorithm: rollouts come from the old policy, a moving average of the trained one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.base import DiffusionAlgorithm, as_denoising, required
from omni_portable.algorithms.diffusion_losses.nft import diffusion_nft_loss, nft_reward_probability
from omni_portable.algorithms.diffusion_nft import NFTOptions
from omni_portable.algorithms.noise_levels import draw_noise_levels
from omni_portable.algorithms.stochastic import advantages_by
from omni_portable.contracts.algorithm import Denoising, LossRows, Policy, Replay, RowKind, Rows
from omni_portable.contracts.rollout import Schedule


class DiffusionNFT(DiffusionAlgorithm):
    """See :func:`diffusion_nft_loss`."""

    name = "diffusion_nft"
    row_kind: RowKind = "noised"
    rollout_policy: Policy = "old"

    def __init__(self, options: NFTOptions) -> None:
        self.options = options
        self.requires = options.requires()

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        return advantages_by(self.options, rewards, groups)

    def noise_levels(self, schedule: Schedule, keys: Sequence[str], seed: int) -> torch.Tensor:
        return draw_noise_levels(self.options, schedule, keys, seed)

    def old_policy_decay(self, round_number: int) -> float | None:
        if round_number % self.options.old_policy_interval:
            return None
        return self.options.decay(round_number)

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        rows_seen, o = as_denoising(replay), self.options
        reference = required(rows_seen.reference_velocity, "reference") if o.reference_kl_coef else None
        return diffusion_nft_loss(
            rows_seen.velocity,
            required(rows_seen.old_velocity, "old"),
            rows_seen.clean,
            rows_seen.noisy,
            rows_seen.sigma,
            nft_reward_probability(rows.advantage, advantage_clip=o.advantage_clip, mode=o.advantage_mode),
            mix_beta=o.mix_beta,
            advantage_clip=o.advantage_clip,
            adaptive_weight_min=o.adaptive_weight_min,
            reference_prediction=reference,
            reference_kl_coefficient=o.reference_kl_coef,
        )
