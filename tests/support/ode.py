"""A deterministic run of a family's adapter by the house's own sampler, to be compared with a stock pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Extent
from omni_portable.models.policy import transition


def sample_ode(
    adapter: DiffusionAdapter,
    prompts: Sequence[str],
    noise: torch.Tensor,
    extent: Extent,
    *,
    steps: int,
    guidance: float = 1.0,
    negative: str = "",
    media: Sequence[Mapping[str, MediaArtifact]] | None = None,
) -> torch.Tensor:
    """Clean latents (B, ...) from noise (B, ...), one prompt per row."""
    schedule = adapter.schedule(steps, extent)
    positive = adapter.collate(adapter.encode(prompts, media, extent))
    against = adapter.collate(adapter.encode([negative] * len(prompts), media, extent))
    latents = noise
    with torch.no_grad():
        for step in range(schedule.num_steps):
            latents = transition(
                adapter,
                latents=latents,
                step_index=torch.full((len(prompts),), step),
                schedule=schedule,
                kind="ode",
                noise_level=0.0,
                conditioning=positive,
                negative=against,
                guidance_scale=guidance,
            ).next_latents
    return latents


def assert_same_picture(artifacts: Mapping[str, MediaArtifact], picture: object) -> None:
    """The artifact 'image' is the PIL picture but for last-bit differences that sat on a rounding edge."""
    image = artifacts["image"]
    assert isinstance(image.data, torch.Tensor)
    assert (image.modality, image.layout, image.data.dtype) == ("image", "CHW", torch.uint8)
    difference = image.data.permute(1, 2, 0).numpy().astype(int) - np.asarray(picture).astype(int)
    assert np.abs(difference).max() <= 1
    assert np.mean(difference != 0) < 0.01
