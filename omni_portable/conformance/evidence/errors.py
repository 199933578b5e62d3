"""Distances between what was recorded and what was computed again. NaN and wrong shapes are never small."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch


def relative_errors(actual: torch.Tensor, expected: torch.Tensor, keep: int) -> torch.Tensor:
    """||actual - expected|| / ||expected|| over all but the first `keep` dimensions, fp64 on the CPU.

    Where `expected` is all zero the error is 0 if `actual` is, too, and infinite otherwise.

    Raises:
        ValueError: different shapes.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    ours, theirs = (tensor.detach().to("cpu", torch.float64).flatten(keep) for tensor in (actual, expected))
    gap, size = (ours - theirs).norm(dim=-1), theirs.norm(dim=-1)
    return torch.where(size > 0, gap / size.clamp(min=torch.finfo(torch.float64).tiny), _zero_or_infinite(gap))


def absolute_errors(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """|actual - expected|, elementwise, fp64 on the CPU; ValueError for different shapes."""
    if actual.shape != expected.shape:
        raise ValueError(f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}")
    return (actual.detach().to("cpu", torch.float64) - expected.detach().to("cpu", torch.float64)).abs()


def worst(errors: torch.Tensor | Iterable[float]) -> float:
    """The largest; NaN where any is NaN, 0 where there are none."""
    values = errors.flatten().tolist() if isinstance(errors, torch.Tensor) else list(errors)
    return math.nan if any(math.isnan(value) for value in values) else max(values, default=0.0)


def _zero_or_infinite(gap: torch.Tensor) -> torch.Tensor:
    return torch.where(gap == 0, torch.zeros_like(gap), torch.full_like(gap, math.inf))
