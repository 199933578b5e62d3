"""Guidance on clean samples (LTX-2): predictions are compared where they say what the sample will be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.samplers.reduce import expand_rows

Compared = Sequence[tuple[float, torch.Tensor]]
"""Weight and velocity (B, ...) fp32 of each weaker prediction that guidance moves away from."""


def clean_space_guidance(
    sample: torch.Tensor, sigma: torch.Tensor, positive: torch.Tensor, weaker: Compared, rescale: float = 0.0
) -> torch.Tensor:
    """x0 = x0+ + sum of w (x0+ - x0-) with x0 = x - sigma v, and back: v = (x - x0) / sigma.

    Classifier-free guidance of scale g has the negative prompt's prediction at w = g - 1; spatio-temporal guidance
    (arXiv:2411.18664) has at its scale a prediction for which some blocks skipped their self-attention; isolation of
    modalities has one whose streams did not see each other.

    With `rescale` r the guided x0 becomes r x0 std(x0+) / std(x0) + (1 - r) x0, which keeps its spread near that of the
    unguided one (arXiv:2305.08891, section 3.4); standard deviations are taken over each sample.

    Args:
        sample: (B, ...) fp32 latents at `sigma`.
        sigma: (B,) fp32, above 0.
        positive: (B, ...) fp32 velocity for the prompt.

    Source: LTX-2's pipeline in diffusers 0.40.
    """
    level = expand_rows(sigma, sample)
    clean = guided = sample - level * positive
    for weight, velocity in weaker:
        guided = guided + weight * (clean - (sample - level * velocity))
    if rescale:
        ratio = clean.flatten(1).std(dim=1) / guided.flatten(1).std(dim=1)
        guided = rescale * (guided * expand_rows(ratio, guided)) + (1.0 - rescale) * guided
    return (sample - guided) / level
