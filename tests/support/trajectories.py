"""Comparison of trajectories: bit-equality and the largest gap."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.contracts.rollout import Trajectory

FIELDS = ("step_indices", "latents", "next_latents", "log_probs", "final_latents")


def bit_equal(left: Sequence[Trajectory], right: Sequence[Trajectory]) -> bool:
    """Whether two lists hold the same requests with the same bits."""
    return [t.request for t in left] == [t.request for t in right] and all(
        torch.equal(getattr(a, name), getattr(b, name)) for a, b in zip(left, right, strict=True) for name in FIELDS
    )


def largest_gap(left: Sequence[Trajectory], right: Sequence[Trajectory], field: str) -> float:
    """Largest absolute difference of one field over trajectories paired by request id."""
    by_id = {t.request.request_id: t for t in right}
    return max((getattr(t, field) - getattr(by_id[t.request.request_id], field)).abs().max().item() for t in left)
