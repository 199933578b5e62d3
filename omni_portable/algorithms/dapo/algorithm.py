"""DAPO as an algorithm of the house: which groups are trained on, and what length costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.algorithms.advantages import group_members
from omni_portable.algorithms.dapo import DAPOOptions
from omni_portable.algorithms.token_base import DualClipAlgorithm
from omni_portable.contracts.algorithm import Selection
from omni_portable.contracts.errors import ConfigError


class DAPO(DualClipAlgorithm):
    """GRPO's loss with an upper clip of its own, on groups whose rewards differ."""

    name = "dapo"
    dynamic_sampling = True
    options: DAPOOptions

    def __init__(self, options: DAPOOptions) -> None:
        super().__init__(options)
        self.refill_rounds = options.refill_rounds

    def shape_rewards(self, rewards: torch.Tensor, lengths: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
        """r - overlong_penalty clamp((length - (max_new_tokens - overlong_buffer)) / overlong_buffer, 0, 1)."""
        buffer = self.options.overlong_buffer
        if not buffer:
            return rewards
        if int(budgets.min()) <= buffer:
            raise ConfigError(
                f"algorithm.overlong_buffer={buffer} leaves nothing of rollout.max_new_tokens={int(budgets.min())}",
                remedy="set it below rollout.max_new_tokens",
            )
        reached = ((lengths - (budgets - buffer)) / buffer).clamp(0.0, 1.0)
        return rewards - self.options.overlong_penalty * reached.to(rewards)

    def select(self, rewards: torch.Tensor, groups: Sequence[str]) -> Selection:
        """Groups with a signal; `rewards` as they were scored, before their lengths are punished."""
        kept = [
            index
            for members in group_members(groups).values()
            if bool((rewards[members] != rewards[members[0]]).any())
            for index in members
        ]
        return Selection(kept)
