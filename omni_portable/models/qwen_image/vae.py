"""Images to latents and back with `AutoencoderKLQwenImage`, a video autoencoder that is given one frame; latents are
normalised per channel. One image at a time, so that pixels do not depend on the pack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.attention import fixed_vae_attention
from omni_portable.models.loading import load_diffusers


def load_vae(load: ModelLoad) -> tuple[torch.nn.Module, str]:
    """The frozen autoencoder of a folder, and the attention kernel it uses."""
    model = load_diffusers(AutoencoderKLQwenImage, load.path / "vae", load.dtype)
    kernel = fixed_vae_attention(model, load.attention.get("vae"))
    return model.requires_grad_(False).to(load.torch_device), kernel


def encode_image(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """(3, H, W) in [-1, 1] -> (C, H', W') fp32: the mode of the posterior, (x - mean) / std per channel."""
    mean, std = _statistics(vae)
    latents = vae.encode(pixels.to(mean.device, mean.dtype)[None, :, None]).latent_dist.mode()
    normalised: torch.Tensor = ((latents - mean) / std)[0, :, 0].float()
    return normalised


def decode_images(vae: Any, latents: torch.Tensor) -> Iterator[torch.Tensor]:
    """(B, C, H', W') -> B images (3, H, W) in [-1, 1]."""
    mean, std = _statistics(vae)
    inverse = 1.0 / std
    for row in latents.unbind():
        scaled = row.to(mean.device, mean.dtype)[None, :, None] / inverse + mean
        yield vae.decode(scaled, return_dict=False)[0][0, :, 0]


def _statistics(vae: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation per channel, (1, C, 1, 1, 1) in the VAE's dtype."""
    parameter = next(vae.parameters())
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1).to(parameter.device, parameter.dtype)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean, std
