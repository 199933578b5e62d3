"""Images, and frames of videos, as pixel arrays for scorers that work on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import require_artifact
from omni_portable.contracts.reward import RewardSample
from omni_portable.reward.looking import Looked

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""(H, W, 3) uint8 RGB, contiguous."""


def sample_pixels(sample: RewardSample, artifact: str, asked_by: str) -> Pixels:
    """The sample's image as an (H, W, 3) uint8 RGB array.

    Raises:
        ArtifactError: the artifact is missing, unlabelled, no image, or has other than three channels.
    """
    found = require_artifact(sample.artifacts, artifact, "image", f"{asked_by} (sample '{sample.sample_id}')")
    data: Any = found.data
    if data.shape[0] != 3 or 0 in data.shape:
        raise ArtifactError(
            f"{asked_by} needs '{artifact}' of sample '{sample.sample_id}' to be (3, H, W), got {tuple(data.shape)}"
        )
    return np.ascontiguousarray(data.detach().cpu().numpy().transpose(1, 2, 0))


def sample_pictures(sample: RewardSample, artifact: str, modality: Looked, every: int, asked_by: str) -> list[Pixels]:
    """The sample's image, or every `every`-th frame of its video, the first included; (H, W, 3) each.

    Raises:
        ArtifactError: the artifact is missing, unlabelled, of another modality, or has other than three channels.
    """
    if modality == "image":
        return [sample_pixels(sample, artifact, asked_by)]
    data: Any = require_artifact(sample.artifacts, artifact, "video", f"{asked_by} (sample '{sample.sample_id}')").data
    if data.shape[1] != 3 or 0 in data.shape:
        raise ArtifactError(
            f"{asked_by} needs '{artifact}' of sample '{sample.sample_id}' to be (T, 3, H, W), got {tuple(data.shape)}"
        )
    frames = data[::every].detach().cpu().numpy().transpose(0, 2, 3, 1)
    return [np.ascontiguousarray(frame) for frame in frames]
