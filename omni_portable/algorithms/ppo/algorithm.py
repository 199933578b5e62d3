"""PPO-clip as an algorithm of the house: advantages of whole responses against one of three baselines."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.ppo import PPOOptions
from omni_portable.algorithms.token_base import DualClipAlgorithm


class PPO(DualClipAlgorithm):
    """GRPO's loss per token; what differs is the baseline."""

    name = "ppo"
    options: PPOOptions

    def advantages(self, rewards: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
        if self.options.baseline == "none":
            return rewards.float()
        ids = groups if self.options.baseline == "group" else ["all"] * len(groups)
        return super().advantages(rewards, ids)
