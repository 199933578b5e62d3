"""Input media of a model, checked: what is missing, of another kind or of another size is named, never adjusted."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact, require_artifact
from omni_portable.contracts.rollout import Extent


def image_pixels(media: Mapping[str, MediaArtifact], name: str, extent: Extent) -> torch.Tensor:
    """(3, H, W) fp32 in [-1, 1] of the image called `name`.

    Raises:
        ArtifactError: it is missing, no image, or not of the extent's size.
    """
    data = require_artifact(media, name, "image", "the model").data
    assert isinstance(data, torch.Tensor)
    if tuple(data.shape[1:]) != (extent.height, extent.width):
        raise ArtifactError(
            f"the image '{name}' has {data.shape[1]} x {data.shape[2]} pixels, expected {extent.height} x "
            f"{extent.width}",
            remedy="resize it when the dataset is made, or set rollout.height and rollout.width",
        )
    return data.float() / 127.5 - 1.0
