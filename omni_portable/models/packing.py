"""Images' latents as the tokens of a transformer: 2 x 2 neighbours become one token (Qwen-Image, FLUX)."""

from __future__ import annotations

import torch

from omni_portable.models.diffusers_folder import SIDE


def pack(latents: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) -> (B, H/2 x W/2, 4 C), tokens row by row, channels in the order (C, row, column)."""
    batch, channels, height, width = latents.shape
    grid = latents.reshape(batch, channels, height // SIDE, SIDE, width // SIDE, SIDE)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, (height // SIDE) * (width // SIDE), channels * SIDE * SIDE)


def unpack(tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Inverse of :func:`pack` for latents of height x width: (B, H/2 x W/2, 4 C) -> (B, C, H, W)."""
    batch, _, width_of_token = tokens.shape
    grid = tokens.reshape(batch, height // SIDE, width // SIDE, width_of_token // (SIDE * SIDE), SIDE, SIDE)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, width_of_token // (SIDE * SIDE), height, width)
