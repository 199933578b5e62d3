"""A given first frame of models with a timestep per token (Wan2.2-TI2V-5B): its latents are clean at every step.

The transformer reads the frame's own latents at timestep 0 in place of noisy ones. In the latents of a sample the first
frame still takes part in every step, with the velocity (x - x0) / sigma towards what is given: no weight moves it, so
that it changes neither ratios nor gradients, and the last step arrives at the given frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.models.inputs import image_pixels
from omni_portable.models.wan22.condition import FIRST
from omni_portable.models.wan22.vae import wan_encode
from omni_portable.samplers.reduce import expand_rows

FRAME, GIVEN = "first_frame", "first_frame_given"
"""Parts of a conditioning: latents (C, 1, H, W) fp32, zeros without a frame; and (1,) bool."""


def no_frame(shape: tuple[int, ...], device: torch.device) -> Conditioning:
    """Of a prompt without a first frame; `shape` is that of a sample's latents, (C, T, H, W)."""
    channels, _, height, width = shape
    empty = torch.zeros(channels, 1, height, width, device=device)
    return {FRAME: empty, GIVEN: torch.zeros(1, dtype=torch.bool, device=device)}


def encoded_frame(vae: Any, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
    """Of a prompt with one.

    Raises:
        ArtifactError: another medium than a first frame, or one of another size.
    """
    unknown = sorted(set(media) - {FIRST})
    if unknown:
        raise ArtifactError(f"this Wan model takes no input '{unknown[0]}'", choices=(FIRST,))
    latents = wan_encode(vae, image_pixels(media, FIRST, extent).unsqueeze(1))
    return {FRAME: latents, GIVEN: torch.ones(1, dtype=torch.bool, device=latents.device)}


def with_frame(latents: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
    """(B, C, T, H, W) latents as the transformer reads them: given first frames in their place."""
    first = torch.where(_rows(conditioning, latents), conditioning[FRAME].to(latents), latents[:, :, :1])
    return torch.cat([first, latents[:, :, 1:]], dim=2)


def token_timesteps(
    timesteps: torch.Tensor, conditioning: Conditioning, tokens: int, tokens_per_frame: int
) -> torch.Tensor:
    """(B, tokens): the row's timestep, and 0 for the tokens of a given first frame."""
    found = timesteps.unsqueeze(1).repeat(1, tokens)
    given = conditioning[GIVEN].to(timesteps.device)
    found[:, :tokens_per_frame] = found[:, :tokens_per_frame].masked_fill(given, 0.0)
    return found


def towards_frame(
    velocity: torch.Tensor, latents: torch.Tensor, sigma: torch.Tensor, conditioning: Conditioning
) -> torch.Tensor:
    """The velocity with that of given first frames towards them.

    Args:
        velocity / latents: (B, C, T, H, W) fp32, the model's and at `sigma`.
        sigma: (B,) fp32, above 0.
    """
    towards = (latents[:, :, :1] - conditioning[FRAME].to(latents)) / expand_rows(sigma, latents)
    first = torch.where(_rows(conditioning, latents), towards, velocity[:, :, :1])
    return torch.cat([first, velocity[:, :, 1:]], dim=2)


def _rows(conditioning: Conditioning, like: torch.Tensor) -> torch.Tensor:
    return expand_rows(conditioning[GIVEN][:, 0].to(like.device), like)
