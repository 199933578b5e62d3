"""Rollout requests and scored groups for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan, Schedule, Trajectory

SCHEDULE = Schedule(sigmas=(1.0, 0.875, 0.625, 0.25, 0.0), key="test")
PLAN = SamplingPlan(kind="sde", noise_level=0.7, stochastic_steps=(1, 2))


def make_request(index: int = 0, **changes: Any) -> RolloutRequest:
    """Request number `index`: sample `index % 4` of prompt `index // 4`."""
    fields: dict[str, Any] = {
        "request_id": f"r{index}",
        "group_id": f"g{index // 4}",
        "prompt_id": f"p{index // 4}",
        "sample_index": index % 4,
        "seed": 11,
        "prompt": f"prompt {index // 4}",
        "height": 32,
        "width": 32,
        "schedule": SCHEDULE,
        "plan": PLAN,
    }
    return RolloutRequest(**(fields | changes))


def make_trajectory(request: RolloutRequest, version: int = 0) -> Trajectory:
    """An empty but well-formed trajectory."""
    latents = torch.zeros(0, 1)
    return Trajectory(
        request=request,
        schedule_fingerprint=request.schedule.fingerprint,
        policy_version=version,
        step_indices=torch.zeros(0, dtype=torch.int64),
        latents=latents,
        next_latents=latents,
        log_probs=torch.zeros(0),
        final_latents=torch.zeros(1),
        conditioning={},
        artifacts={},
    )


def make_group(group_id: str, submission: int, versions: Sequence[int]) -> ScoredGroup:
    """A group with one trajectory per given policy version."""
    trajectories = [
        make_trajectory(make_request(i, request_id=f"{group_id}/{i}", group_id=group_id), version)
        for i, version in enumerate(versions)
    ]
    return ScoredGroup(group_id, submission, trajectories, rewards=[float(i) for i in range(len(versions))])
