"""Media of drawn samples stay in the cluster's object store until somebody looks at them.

The process that draws a sample packs its media apart. The trainer gets labels and a reference; it hands the reference
to a reward worker, which reads the media itself, and fetches them only where it shows them. Whoever drops the
trajectory frees them. The trainer owns the references: media outlive the process that drew them, not its machine.

Media that a prompt brought along do not come back with its samples: the trainer has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from omni_backends.launch.ray.worker import Worker
from omni_portable.contracts.media import DistantArtifact, MediaArtifact
from omni_portable.contracts.reward import RewardSample
from omni_portable.contracts.rollout import RolloutResult
from omni_portable.contracts.tokens import AnyRequest, AnyTrajectory
from omni_portable.rollout.codec import pack, unpack

Names = Mapping[str, Sequence[str]]
"""Request id -> names of its artifacts that travel apart."""
Media = Mapping[str, MediaArtifact]
"""By name."""


class Parcel:
    """Media of one sample in the object store, as a `DistantMedia`.

    Args:
        reference: Ray's, to packed artifacts by name.
        worker: that drew them, for messages.
    """

    def __init__(self, reference: Any, worker: Worker) -> None:
        self.reference, self._worker = reference, worker
        self._held: Mapping[str, MediaArtifact] | None = None

    def artifact(self, name: str) -> MediaArtifact:
        """Fetch all on first use."""
        if self._held is None:
            self._held = unpack(self._worker.bring(self.reference))
        return self._held[name]


def separated(result: RolloutResult, least: int) -> tuple[RolloutResult, Names, dict[str, bytes]]:
    """The drawing side: a result with empty data in place of media of `least` bytes and more for one sample, their
    names, and the packed media by request id."""
    names: dict[str, list[str]] = {}
    parcels: dict[str, bytes] = {}
    trajectories = []
    for trajectory in result.trajectories:
        media = {name: one for name, one in trajectory.artifacts.items() if isinstance(one.data, torch.Tensor)}
        if sum(one.data.nbytes for one in media.values() if isinstance(one.data, torch.Tensor)) >= least:
            request = trajectory.request.request_id
            names[request], parcels[request] = list(media), pack(media)
            labels = {name: _labels(one) for name, one in media.items()}
            trajectory = replace(trajectory, artifacts={**trajectory.artifacts, **labels})
        trajectories.append(trajectory)
    return replace(result, trajectories=trajectories), names, parcels


def rejoined(result: RolloutResult, names: Names, references: Mapping[str, Any], worker: Worker) -> RolloutResult:
    """The trainer's side: the result with references in place of the empty data."""

    def one(trajectory: AnyTrajectory) -> AnyTrajectory:
        request = trajectory.request.request_id
        if request not in names:
            return trajectory
        parcel = Parcel(references[request], worker)
        distant = {name: DistantArtifact(trajectory.artifacts[name], parcel) for name in names[request]}
        return replace(trajectory, artifacts={**trajectory.artifacts, **distant})

    return replace(result, trajectories=[one(trajectory) for trajectory in result.trajectories])


def without_prompts(result: RolloutResult, requests: Sequence[AnyRequest]) -> tuple[RolloutResult, list[str]]:
    """The drawing side: a result without the media that came with its requests, and the ids of these: whoever asked
    has them still."""
    asked = {request.request_id: request for request in requests}
    left: list[str] = []

    def one(trajectory: AnyTrajectory) -> AnyTrajectory:
        own = trajectory.request
        came = asked[own.request_id]
        if not (came.media or came.target) or own.media is not came.media or own.target is not came.target:
            return trajectory
        left.append(own.request_id)
        return _with_media(trajectory, {}, {})

    return replace(result, trajectories=[one(trajectory) for trajectory in result.trajectories]), left


def with_prompts(result: RolloutResult, left: Sequence[str], requests: Sequence[AnyRequest]) -> RolloutResult:
    """The trainer's side: the result with the media that its requests had."""
    asked = {request.request_id: request for request in requests if request.request_id in set(left)}

    def one(trajectory: AnyTrajectory) -> AnyTrajectory:
        came = asked.get(trajectory.request.request_id)
        return trajectory if came is None else _with_media(trajectory, came.media, came.target)

    return replace(result, trajectories=[one(trajectory) for trajectory in result.trajectories])


def addressed(samples: Sequence[RewardSample]) -> tuple[list[RewardSample], list[int], list[Any]]:
    """The trainer's side, on the way to a reward worker: samples without the media that it reads itself, of each the
    position of its reference (-1: all of it is here), and the references."""
    sent: list[RewardSample] = []
    positions: list[int] = []
    references: list[Any] = []
    for sample in samples:
        distant = {name: one for name, one in sample.artifacts.items() if isinstance(one, DistantArtifact)}
        sources = {id(one.source): one.source for one in distant.values()}
        (source, *others) = sources.values() or (None,)
        if isinstance(source, Parcel) and not others:
            here = {name: one for name, one in sample.artifacts.items() if name not in distant}
            sample = replace(sample, artifacts=here)
            positions.append(len(references))
            references.append(source.reference)
        else:
            positions.append(-1)
        sent.append(sample)
    return sent, positions, references


def completed(
    samples: Sequence[RewardSample], positions: Sequence[int], parcels: Sequence[bytes]
) -> list[RewardSample]:
    """The reward worker's side: the samples with their media."""
    return [
        sample if position < 0 else replace(sample, artifacts={**sample.artifacts, **unpack(parcels[position])})
        for sample, position in zip(samples, positions, strict=True)
    ]


def _with_media(trajectory: AnyTrajectory, media: Media, target: Media) -> AnyTrajectory:
    request: Any = replace(trajectory.request, media=media, target=target)
    return replace(trajectory, request=request)


def _labels(artifact: MediaArtifact) -> MediaArtifact:
    assert isinstance(artifact.data, torch.Tensor)
    return replace(artifact, data=artifact.data.new_empty((0,) * artifact.data.ndim))
