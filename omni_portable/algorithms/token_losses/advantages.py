"""GRPO advantages of token sequences."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from omni_portable.algorithms.advantages import group_advantages, group_members


def grpo_token_advantages(
    token_rewards: torch.Tensor,
    mask: torch.Tensor,
    groups: Sequence[Hashable],
    *,
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
    keep_lone_rewards: bool = False,
) -> torch.Tensor:
    """(B, T) advantages: a sequence's reward is the sum of its token rewards, compared within its group.

    Args:
        token_rewards: (B, T) fp32; mask: (B, T).
        groups: B group ids.
        normalize_by_std: divide by the group's unbiased standard deviation + epsilon.
        keep_lone_rewards: in a group of one, verl takes the baseline as 0 and the std as 1, so that the raw reward
            becomes the advantage. True keeps that; by default a group of one has advantage 0.

    Source: GRPO (arXiv 2402.03300) with outcome rewards, as implemented by verl.
    """
    rewards = token_rewards.sum(dim=-1)
    advantages = group_advantages(
        rewards, groups, global_std=False, normalize_by_std=normalize_by_std, std_ddof=1, epsilon=epsilon
    )
    if keep_lone_rewards:
        scale = 1.0 + epsilon if normalize_by_std else 1.0
        lone = [members[0] for members in group_members(groups).values() if len(members) == 1]
        advantages[lone] = rewards[lone].float() / scale
    return advantages.unsqueeze(-1) * mask
