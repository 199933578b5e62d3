"""Latents of several streams (video and sound) in one flat vector per sample.

A sample's latents are (elements,): the streams one after the other, each flattened in row-major order. Samplers, noise,
log-probs and losses see one vector; only the model and the decoders take it apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from omni_portable.contracts.errors import ModelError

Shapes = Mapping[str, tuple[int, ...]]
"""Stream -> shape of one sample's latents, in the order of the vector."""


def bounds(shapes: Shapes) -> dict[str, tuple[int, int]]:
    """Stream -> [start, stop) in a sample's vector."""
    found: dict[str, tuple[int, int]] = {}
    start = 0
    for name, shape in shapes.items():
        found[name] = (start, start + math.prod(shape))
        start = found[name][1]
    return found


def elements(shapes: Shapes) -> int:
    """Length of a sample's vector."""
    return sum(math.prod(shape) for shape in shapes.values())


def join(parts: Mapping[str, torch.Tensor], shapes: Shapes) -> torch.Tensor:
    """Streams (B, *shape) -> (B, elements).

    Raises:
        ModelError: a stream that is missing, or of another shape.
    """
    for name, shape in shapes.items():
        if name not in parts or tuple(parts[name].shape[1:]) != shape:
            found = tuple(parts[name].shape[1:]) if name in parts else "missing"
            raise ModelError(f"the latents of stream '{name}' are {found}, expected {shape}")
    return torch.cat([parts[name].flatten(1) for name in shapes], dim=1)


def split(vectors: torch.Tensor, shapes: Shapes) -> dict[str, torch.Tensor]:
    """(B, elements) -> streams (B, *shape), as views where that is possible.

    Raises:
        ModelError: vectors of another length.
    """
    if vectors.dim() != 2 or vectors.shape[1] != elements(shapes):
        raise ModelError(
            f"latents of shape {tuple(vectors.shape)} do not hold the {elements(shapes)} elements of {dict(shapes)}"
        )
    return {name: vectors[:, start:stop].unflatten(1, shapes[name]) for name, (start, stop) in bounds(shapes).items()}
