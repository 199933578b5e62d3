"""Images to latents and back with diffusers' `AutoencoderKL`; one image at a time, so that memory is that of one image
and pixels do not depend on the pack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers import AutoencoderKL

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.attention import apply_to_vae
from omni_portable.models.loading import load_diffusers


def load_kl_vae(load: ModelLoad) -> tuple[torch.nn.Module, str]:
    """The frozen autoencoder of a folder, and the attention kernel it uses."""
    model = load_diffusers(AutoencoderKL, load.path / "vae", load.dtype)
    kernel = apply_to_vae(model, load.attention.get("vae"))
    return model.requires_grad_(False).to(load.torch_device), kernel


def kl_encode(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """(3, H, W) in [-1, 1] -> (C, H', W') fp32: the mode of the posterior, shifted and scaled."""
    parameter = next(vae.parameters())
    latents = vae.encode(pixels.to(parameter.device, parameter.dtype).unsqueeze(0)).latent_dist.mode()[0]
    scaled: torch.Tensor = ((latents - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor).float()
    return scaled


def kl_decode(vae: Any, latents: torch.Tensor) -> Iterator[torch.Tensor]:
    """(B, C, H', W') -> B images (3, H, W), about in [-1, 1]."""
    parameter = next(vae.parameters())
    for row in latents.unbind():
        scaled = row.to(parameter.device, parameter.dtype) / vae.config.scaling_factor + (vae.config.shift_factor or 0)
        yield vae.decode(scaled.unsqueeze(0), return_dict=False)[0][0]
