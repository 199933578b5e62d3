"""Group-relative advantages: one reward per sample, compared with the other samples of its prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from omni_portable.contracts.errors import NonFiniteError


def group_advantages(
    rewards: torch.Tensor,
    groups: Sequence[Hashable],
    *,
    global_std: bool = True,
    normalize_by_std: bool = True,
    std_ddof: int = 1,
    epsilon: float = 1e-4,
) -> torch.Tensor:
    """A = (r - mean of the group) / (std + epsilon), of GRPO (arXiv 2402.03300) and Flow-GRPO (arXiv 2505.05470).

    Rewards are taken once per sample and never repeated over denoising steps, so the advantage does not depend on how
    many steps are stochastic. A group of one, or of equal rewards, has no preference: its advantages are exactly 0.

    Args:
        rewards: (N,) finite, one per sample.
        groups: N group ids.
        global_std: divide by the standard deviation of all N rewards, else by the group's own.
        normalize_by_std: False leaves the difference to the group's mean.
        std_ddof: 1 for the unbiased estimate (VeRL-Omni), 0 for the population's (flow_grpo).
        epsilon: added to the standard deviation.

    Returns:
        (N,) fp32 on the device of `rewards`; computed in fp64 on the CPU, so that order and grouping leave no trace.

    Raises:
        NonFiniteError: a NaN or infinite reward.
        ValueError: shapes that do not belong together.
    """
    values = rewards.detach().to("cpu", torch.float64)
    members = group_members(groups)
    _check(values, groups)
    advantages = torch.zeros_like(values)
    overall = _std(values, std_ddof)
    for indices in members.values():
        own = values[indices]
        if len(indices) < 2 or bool((own == own[0]).all()):
            continue
        centered = own - own.mean()
        spread = overall if global_std else _std(own, std_ddof)
        advantages[indices] = centered / (spread + epsilon) if normalize_by_std else centered
    return advantages.to(rewards.device, torch.float32)


def group_members(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Group id -> positions of its members, groups in order of first appearance."""
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


def _std(values: torch.Tensor, ddof: int) -> torch.Tensor:
    if len(values) <= ddof:
        return values.new_ones(())
    return values.std(correction=ddof)


def _check(values: torch.Tensor, groups: Sequence[Hashable]) -> None:
    if values.dim() != 1 or len(groups) != len(values):
        raise ValueError(f"rewards {tuple(values.shape)} and {len(groups)} group ids do not belong together")
    bad = [groups[i] for i in torch.nonzero(~torch.isfinite(values)).flatten().tolist()]
    if bad:
        raise NonFiniteError(
            f"{len(bad)} reward(s) are NaN or infinite, in groups {bad[:8]}",
            remedy="find the scorer that returned them (reward/* metrics), or set reward.on_error=drop_group",
        )
