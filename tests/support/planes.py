"""Groups with media for tests of data planes, and the options of the queue that they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.media import MediaArtifact
from tests.support.requests import make_group

QUEUE = "tests"


def queue_options(**changes: Any) -> Any:
    """Of the queue 'tests'."""
    from omni_backends.dataplane.transferqueue import TransferQueueOptions

    fields: dict[str, Any] = {"queue": QUEUE, "capacity_groups": 16, "capacity_mib": 8}
    return TransferQueueOptions(**(fields | changes))


def media_group(group_id: str = "g", submission: int = 0, size: int = 2) -> ScoredGroup:
    """A group with latents and an image and a text per trajectory."""
    group = make_group(group_id, submission, [3] * size)
    group.components, group.details = {"ocr": [0.5] * size}, [{"said": f"a{i}"} for i in range(size)]
    group.trajectories = [
        replace(
            each,
            final_latents=torch.randn(4, 3),
            artifacts={
                "image": MediaArtifact(
                    "image", "image", torch.arange(48, dtype=torch.uint8).view(3, 4, 4), layout="CHW"
                ),
                "response": MediaArtifact("response", "text", f"word {i}", "str"),
            },
        )
        for i, each in enumerate(group.trajectories)
    ]
    return group


def heavy_group(group_id: str, size: int) -> ScoredGroup:
    """A group of one trajectory with so many bytes of latents."""
    group = make_group(group_id, 0, [0])
    group.trajectories = [replace(group.trajectories[0], final_latents=torch.zeros(size // 4))]
    return group


def same_media(one: ScoredGroup, other: ScoredGroup) -> bool:
    """Are the artifacts equal, bit for bit?"""
    for a, b in zip(one.trajectories, other.trajectories, strict=True):
        if a.artifacts.keys() != b.artifacts.keys():
            return False
        for name, artifact in a.artifacts.items():
            copy = b.artifacts[name]
            data = artifact.data
            equal = torch.equal(data, copy.data) if isinstance(data, torch.Tensor) else data == copy.data
            if not equal or replace(artifact, data=copy.data) != copy:
                return False
    return True
