"""Input images as Qwen-Image-Edit takes them: brought to a given area, each keeping its ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact, require_artifact
from omni_portable.models.qwen_image_edit import IMAGES, SIDE_UNIT


def input_images(media: Mapping[str, MediaArtifact], most: int) -> list[torch.Tensor]:
    """The uint8 (3, H, W) input images of one prompt, in their order.

    Raises:
        ArtifactError: none, more than `most`, one left out in between, or a medium that is no image or of another name.
    """
    names = [name for name in IMAGES if name in media]
    if unknown := sorted(set(media) - set(IMAGES)):
        raise ArtifactError(f"Qwen-Image-Edit takes no input medium '{unknown[0]}'", choices=IMAGES[:most])
    if not names:
        raise ArtifactError(
            "Qwen-Image-Edit changes a given image, but the prompt has none",
            remedy="give rows an image and name it in data.media.image",
        )
    if len(names) > most:
        raise ArtifactError(f"this release of Qwen-Image-Edit takes {most} image, but the prompt has {len(names)}")
    if tuple(names) != IMAGES[: len(names)]:
        missing = next(name for name in IMAGES if name not in names)
        raise ArtifactError(f"the prompt has the input image '{names[-1]}', but no '{missing}'")
    images = [require_artifact(media, name, "image", "Qwen-Image-Edit").data for name in names]
    return [image for image in images if isinstance(image, torch.Tensor)]


def resized(image: torch.Tensor, area: int) -> torch.Tensor:
    """uint8 (3, H, W) brought to about `area` pixels (Lanczos), sides multiples of 32."""
    ratio = image.shape[2] / image.shape[1]
    width = math.sqrt(area * ratio)
    sides = [max(1, round(side / SIDE_UNIT)) * SIDE_UNIT for side in (width, width / ratio)]
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    picture = picture.resize((sides[0], sides[1]), resample=Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
