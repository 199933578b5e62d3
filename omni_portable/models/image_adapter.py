"""What families that draw single images have in common, whatever their autoencoder and transformer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent, Schedule
from omni_portable.models.diffusers_adapter import DiffusersAdapter, family_options
from omni_portable.models.diffusers_folder import require_image
from omni_portable.models.guidance import require_negative
from omni_portable.models.inputs import image_pixels
from omni_portable.samplers.schedule import Spacing, schedule_from_config


class ImageAdapter(DiffusersAdapter):
    """See :class:`DiffusersAdapter`; latents are (channels, height, width)."""

    options_type: ClassVar[type]
    """The family's options dataclass."""
    spacing: ClassVar[Spacing]
    """How the published pipeline spaces its sigmas."""
    folder: Any
    """What :meth:`read_folder` returned."""

    def __init__(self, load: ModelLoad) -> None:
        self._options: Any = family_options(load, self.options_type, self.family)
        self.folder = self.read_folder(load.path)
        super().__init__(load)

    @staticmethod
    @abstractmethod
    def read_folder(path: Path) -> Any:
        """The checked config files of a folder: `scheduler`, `latent_shape(height, width)`, `tokens(height, width)` and
        `attention_requests(dtype, training)`."""

    @abstractmethod
    def _forward(self, latents: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        """Model output (B, C, H, W) fp32."""

    @abstractmethod
    def _guided(
        self, latents: torch.Tensor, timesteps: torch.Tensor, both: tuple[Conditioning, Conditioning], scale: float
    ) -> torch.Tensor:
        """The family's guidance rule on one forward of `both`, the negative and the positive conditioning."""

    @abstractmethod
    def _encode_pixels(self, vae: Any, pixels: torch.Tensor) -> torch.Tensor:
        """(3, H, W) fp32 in [-1, 1] -> clean latents (C, H', W') fp32."""

    @abstractmethod
    def _decode_latents(self, vae: Any, latents: torch.Tensor) -> Iterable[torch.Tensor]:
        """(B, C, H', W') -> B images (3, H, W), about in [-1, 1]."""

    def latent_shape(self, extent: Extent) -> tuple[int, ...]:
        """(channels, height / vae scale, width / vae scale); `ConfigError` for a size the model cannot draw."""
        require_image(self.family, extent)
        shape: tuple[int, ...] = self.folder.latent_shape(extent.height, extent.width)
        return shape

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None = None,
    ) -> torch.Tensor:
        """Model output (B, C, H, W) fp32, by the family's guidance rule unless guidance_scale is 1 (`ModelError` where
        the rule has no negative conditioning)."""
        if guidance_scale == 1.0:
            return self._forward(latents, timesteps, conditioning)
        both = require_negative(negative, guidance_scale), conditioning
        return self._guided(latents, timesteps, both, guidance_scale)

    @torch.no_grad()
    def encode_media(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        """Latents of 'image' (the inverse of :meth:`decode`)."""
        return self._encode_pixels(self._loaded("vae", self._vae), image_pixels(media, "image", extent))

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
        """Artifact 'image' per sample: uint8 (3, H, W) on the CPU, round(255 clamp(x / 2 + 1/2, 0, 1))."""
        images = self._decode_latents(self._loaded("vae", self._vae), latents)
        return [{"image": MediaArtifact("image", "image", quantised(image), "CHW")} for image in images]

    def schedule(self, num_steps: int, extent: Extent) -> Schedule:
        """As the folder's scheduler config says, equal to the stock pipeline's (static or dynamic shift)."""
        tokens = self.folder.tokens(extent.height, extent.width)
        return schedule_from_config(self.folder.scheduler, num_steps, tokens=tokens, spacing=self.spacing)


def quantised(image: torch.Tensor) -> torch.Tensor:
    """(3, H, W) in [-1, 1] as uint8 pixels on the CPU."""
    return (image * 0.5 + 0.5).clamp(0, 1).float().mul(255).round().to("cpu", torch.uint8)
