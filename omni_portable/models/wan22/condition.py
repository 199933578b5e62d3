"""What an image-to-video Wan reads beside the latents: which frames are given, and their latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Extent
from omni_portable.models.inputs import image_pixels
from omni_portable.models.wan22.vae import wan_encode

FIRST, LAST = "first_frame", "last_frame"


def frame_condition(
    vae: Any, media: Mapping[str, MediaArtifact], extent: Extent, frames_per_latent: int
) -> torch.Tensor:
    """(frames per latent + latent channels, T', H', W') fp32: a mask that is 1 at given frames, then the latents of a
    video that is mid-grey but for the given frames.

    Raises:
        ArtifactError: no first frame, another image than first and last, one of another size, or a last frame of a
            video that has no second latent frame.
    """
    unknown = sorted(set(media) - {FIRST, LAST})
    if unknown:
        raise ArtifactError(f"Wan takes no input '{unknown[0]}'", choices=(FIRST, LAST))
    video = torch.zeros(3, extent.num_frames, extent.height, extent.width)
    given = torch.zeros(extent.num_frames)
    video[:, 0], given[0] = image_pixels(media, FIRST, extent), 1.0
    if LAST in media:
        if extent.num_frames == 1:
            raise ArtifactError(f"a video of one frame has a '{FIRST}' and no '{LAST}'")
        video[:, -1], given[-1] = image_pixels(media, LAST, extent), 1.0
    latents = wan_encode(vae, video)
    per_latent = torch.cat([given[:1].repeat(frames_per_latent), given[1:]]).view(-1, frames_per_latent).T
    mask = per_latent[:, :, None, None].expand(-1, -1, *latents.shape[2:]).to(latents)
    return torch.cat([mask, latents])
