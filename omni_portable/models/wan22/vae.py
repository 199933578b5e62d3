"""Videos to latents and back with Wan's autoencoder; one video at a time, so that memory is that of one."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.attention import fixed_vae_attention
from omni_portable.models.loading import load_diffusers


def load_wan_vae(load: ModelLoad) -> tuple[torch.nn.Module, str]:
    """The frozen autoencoder of a folder, and the attention kernel it uses."""
    model = load_diffusers(AutoencoderKLWan, load.path / "vae", load.dtype)
    kernel = fixed_vae_attention(model, load.attention.get("vae"))
    return model.requires_grad_(False).to(load.torch_device), kernel


def wan_encode(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """(3, T, H, W) in [-1, 1] -> (C, T', H', W') fp32: the posterior's mode, normalised per channel."""
    parameter = next(vae.parameters())
    latents = vae.encode(pixels.to(parameter.device, parameter.dtype).unsqueeze(0)).latent_dist.mode()[0].float()
    mean, std = _statistics(vae, latents)
    normalised: torch.Tensor = (latents - mean) / std
    return normalised


def wan_decode(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """(C, T', H', W') -> (3, T, H, W) in [0, 1]."""
    parameter = next(vae.parameters())
    scaled = latents.to(parameter.device, parameter.dtype)
    mean, std = _statistics(vae, scaled)
    video: torch.Tensor = vae.decode((scaled * std + mean).unsqueeze(0), return_dict=False)[0][0]
    return video * 0.5 + 0.5


def _statistics(vae: Any, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each channel, (C, 1, 1, 1)."""
    found = [
        torch.tensor(values).view(-1, 1, 1, 1).to(like) for values in (vae.config.latents_mean, vae.config.latents_std)
    ]
    return found[0], found[1]
