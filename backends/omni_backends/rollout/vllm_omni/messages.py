"""Requests and trajectories as vLLM-Omni carries them: plain values and tensors, rebuilt field by field.

A request's metadata and dataset targets stay behind (the engine has no use for them); the trajectory gets back the
request as the caller has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from omni_portable.contracts import errors
from omni_portable.contracts.errors import ConsistencyError, LifecycleError, OmniPortableError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan, Schedule, Trajectory

KEY = "omni_portable"
"""Where a request lies in the engine's `extra_args`."""
_TENSORS = ("step_indices", "latents", "next_latents", "log_probs", "final_latents")


def encode_request(request: RolloutRequest, pack: str, row: int, rows: int) -> dict[str, Any]:
    """A request and its place.

    Args:
        pack: id of the requests that should share a forward.
        row: position among them; `rows` is their number.
    """
    return {
        **{name: getattr(request, name) for name in _PLAIN},
        "schedule": asdict(request.schedule),
        "plan": asdict(request.plan),
        "media": {name: _media(artifact) for name, artifact in request.media.items()},
        "pack": pack,
        "row": row,
        "rows": rows,
    }


_PLAIN = (
    "request_id",
    "group_id",
    "prompt_id",
    "sample_index",
    "seed",
    "prompt",
    "negative_prompt",
    "height",
    "width",
    "num_frames",
    "frame_rate",
    "guidance_scale",
)


def decode_request(message: Mapping[str, Any]) -> RolloutRequest:
    """Inverse of :func:`encode_request`."""
    schedule, plan = message["schedule"], message["plan"]
    return RolloutRequest(
        **{name: message[name] for name in _PLAIN},
        schedule=Schedule(**{**schedule, "sigmas": tuple(schedule["sigmas"])}),
        plan=SamplingPlan(**{**plan, "stochastic_steps": tuple(plan["stochastic_steps"])}),
        media={name: _artifact(media) for name, media in message["media"].items()},
    )


def encode_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """What a worker answers."""
    return {
        **{name: getattr(trajectory, name) for name in _TENSORS},
        "conditioning": dict(trajectory.conditioning),
        "artifacts": {name: _media(artifact) for name, artifact in trajectory.artifacts.items()},
        "schedule_fingerprint": trajectory.schedule_fingerprint,
        "policy_version": trajectory.policy_version,
        "batch_size": trajectory.batch_size,
        "batch_row": trajectory.batch_row,
    }


def decode_trajectory(message: Mapping[str, Any], request: RolloutRequest, version: int, engine: str) -> Trajectory:
    """The worker's answer to `request`, checked against it.

    Raises:
        ConsistencyError: it ran another schedule, another policy version, or returned tensors of other shapes.
    """
    for what, expected, got in (
        ("schedule", request.schedule.fingerprint, message["schedule_fingerprint"]),
        ("policy version", version, message["policy_version"]),
    ):
        if expected != got:
            raise ConsistencyError(
                f"the engine '{engine}' ran request '{request.request_id}' with {what} {got}, expected {expected}"
            )
    trajectory = Trajectory(
        request=request,
        schedule_fingerprint=message["schedule_fingerprint"],
        policy_version=version,
        **{name: message[name] for name in _TENSORS},
        conditioning=dict(message["conditioning"]),
        artifacts={name: _artifact(media) for name, media in message["artifacts"].items()},
        batch_size=int(message["batch_size"]),
        batch_row=int(message["batch_row"]),
        engine=engine,
    )
    _check(trajectory, engine)
    return trajectory


def encode_error(error: OmniPortableError) -> dict[str, Any]:
    """An error of ours that the caller shall see as itself."""
    return {
        "error": type(error).__name__,
        "problem": error.problem,
        "remedy": error.remedy,
        "choices": list(error.choices),
    }


def decode_error(message: Mapping[str, Any]) -> OmniPortableError:
    """Inverse of :func:`encode_error`; a class that is not one of the contracts' becomes `LifecycleError`."""
    kind = getattr(errors, str(message["error"]), None)
    if not (isinstance(kind, type) and issubclass(kind, OmniPortableError)):
        kind = LifecycleError
    return kind(str(message["problem"]), remedy=str(message["remedy"]), choices=list(message["choices"]))


def _media(artifact: MediaArtifact) -> dict[str, Any]:
    return {name: getattr(artifact, name) for name in ("name", "modality", "data", "layout", "sample_rate", "fps")}


def _artifact(message: Mapping[str, Any]) -> MediaArtifact:
    artifact = MediaArtifact(**message)
    return artifact if isinstance(artifact.data, str) else replace(artifact, data=artifact.data.contiguous())


def _check(trajectory: Trajectory, engine: str) -> None:
    shape, kept = tuple(trajectory.final_latents.shape), len(trajectory.step_indices)
    plan, steps = trajectory.request.plan, trajectory.request.schedule.num_steps
    expected = len(plan.stochastic_steps) if plan.record_transitions else 0
    if plan.record_every_step:
        expected = steps
    shapes = {
        "step_indices": (expected,),
        "latents": (expected, *shape),
        "next_latents": (expected, *shape),
        "log_probs": (expected,),
    }
    for name, wanted in shapes.items():
        found: torch.Tensor = getattr(trajectory, name)
        if (tuple(found.shape) != wanted) if expected else kept:
            raise ConsistencyError(
                f"the rollout engine '{engine}' returned {name} of shape {tuple(found.shape)} for request "
                f"'{trajectory.request.request_id}', expected {wanted}"
            )
