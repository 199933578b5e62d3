"""Guidance rules: how the predictions for a prompt and for the negative prompt become one."""

from __future__ import annotations

import torch

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.rollout import Conditioning


def linear_guidance(negative: torch.Tensor, positive: torch.Tensor, scale: float) -> torch.Tensor:
    """v = v_neg + g (v_pos - v_neg) (arXiv:2207.12598)."""
    return negative + scale * (positive - negative)


def norm_keeping_guidance(negative: torch.Tensor, positive: torch.Tensor, scale: float, dim: int = -1) -> torch.Tensor:
    """c = v_neg + g (v_pos - v_neg), v = c |v_pos| / |c| with norms along `dim` (Qwen-Image)."""
    combined = linear_guidance(negative, positive, scale)
    norm = torch.linalg.vector_norm(combined, dim=dim, keepdim=True).clamp_min(torch.finfo(combined.dtype).tiny)
    return combined * (torch.linalg.vector_norm(positive, dim=dim, keepdim=True) / norm)


def require_negative(negative: Conditioning | None, scale: float) -> Conditioning:
    """The negative prompt's conditioning; `ModelError` where guidance has none."""
    if negative is None:
        raise ModelError(
            f"guidance_scale {scale} needs the negative prompt's conditioning, which is missing",
            remedy="encode the negative prompt (an empty one counts), or set rollout.guidance_scale to 1",
        )
    return negative


def both_halves(negative: Conditioning, positive: Conditioning) -> Conditioning:
    """Conditioning of 2 B rows, the negative half first; both halves have the same names and shapes."""
    return {name: torch.cat([negative[name], tensor]) for name, tensor in positive.items()}


def twice(tensor: torch.Tensor) -> torch.Tensor:
    """(B, ...) -> (2 B, ...), for the two halves of guidance."""
    return torch.cat([tensor, tensor])
