"""Guidance on clean samples (LTX-2): two predictions are compared where they say what the sample will be."""

from __future__ import annotations

import torch

from omni_portable.samplers.reduce import expand_rows


def clean_space_guidance(
    sample: torch.Tensor,
    sigma: torch.Tensor,
    negative: torch.Tensor,
    positive: torch.Tensor,
    scale: float,
    rescale: float = 0.0,
) -> torch.Tensor:
    """x0 = x0+ + (g - 1) (x0+ - x0-) with x0 = x - sigma v, and back: v = (x - x0) / sigma.

    With `rescale` r the guided x0 becomes r x0 std(x0+) / std(x0) + (1 - r) x0, which keeps its spread near that of the
    unguided one (arXiv:2305.08891, section 3.4); standard deviations are taken over each sample.

    Args:
        sample: (B, ...) fp32 latents at `sigma`.
        sigma: (B,) fp32, above 0.
        negative / positive: (B, ...) fp32 velocities.

    Source: LTX-2's pipeline in diffusers 0.40.
    """
    level = expand_rows(sigma, sample)
    clean = sample - level * positive
    guided = clean + (scale - 1.0) * (clean - (sample - level * negative))
    if rescale:
        ratio = clean.flatten(1).std(dim=1) / guided.flatten(1).std(dim=1)
        guided = rescale * (guided * expand_rows(ratio, guided)) + (1.0 - rescale) * guided
    return (sample - guided) / level
