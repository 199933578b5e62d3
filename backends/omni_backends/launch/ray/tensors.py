"""Large tensors of drawn samples stay in the cluster's object store until somebody computes with them.

As with media (:mod:`media`), the process that draws a sample puts what is large apart, as return values of the drawing
call, which the trainer owns. The trainer knows shapes; it hands references to the ranks of its train engine and to the
data plane. Tensors of one sample are one object, those that several samples share (a prompt's conditioning) another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from omni_backends.launch.ray.media import APART
from omni_portable.contracts.rollout import RolloutResult, Trajectory
from omni_portable.rollout.blob import flat_bytes
from omni_portable.rollout.distant import DistantTensor

Parts = Sequence[Any]
"""Arrays of bytes, one for each tensor, as Ray keeps them."""
FIELDS = ("latents", "next_latents", "final_latents")
"""Of a denoised sample, that may be large; so may its conditioning. What was drawn as tokens is small, and its inputs
are read where batches are dealt out."""
SHARED = ""
"""In place of a request's id, of what several have."""


class Outgoing:
    """A `TensorSource` that is being filled, where the tensors were made."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def add(self, tensor: torch.Tensor) -> DistantTensor:
        """Take a tensor in, with its own bytes only."""
        self.parts.append(flat_bytes(tensor).numpy())
        return DistantTensor(tensor.shape, tensor.dtype, self, len(self.parts) - 1)

    def part(self, number: int) -> memoryview:
        return memoryview(self.parts[number])


class Bundle:
    """A `TensorSource` in the object store.

    Args:
        reference: Ray's, to :data:`Parts`.
        bring: fetches what a reference stands for.
    """

    def __init__(self, reference: Any, bring: Callable[[Any], Any]) -> None:
        self.reference, self._bring = reference, bring

    def part(self, number: int) -> memoryview:
        parts: Parts = self._bring(self.reference)
        return memoryview(parts[number])


def reference_of(source: object) -> Any:
    """Ray's reference of a bundle.

    Raises:
        TypeError: of any other source.
    """
    if not isinstance(source, Bundle):
        raise TypeError(f"tensors of a {type(source).__name__} cannot be handed on by reference")
    return source.reference


def thinned(result: RolloutResult, sources: Mapping[str, Outgoing]) -> RolloutResult:
    """The drawing side: the result with distant tensors in place of large ones.

    Args:
        sources: that these are put into, by id of the request, and what several have into :data:`SHARED`.
    """
    owners: dict[Any, set[str]] = defaultdict(set)
    for trajectory in result.trajectories:
        if isinstance(trajectory, Trajectory):
            held = (*(getattr(trajectory, name) for name in FIELDS), *trajectory.conditioning.values())
            for tensor in filter(_is_large, held):
                owners[_identity(tensor)].add(trajectory.request.request_id)
    made: dict[Any, DistantTensor] = {}

    def thin(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_large(tensor):
            return tensor
        identity = _identity(tensor)
        if identity not in made:
            (owner, *others) = owners[identity]
            made[identity] = sources[SHARED if others else owner].add(tensor)
        return made[identity]

    thin_ones = [replace(t, **_changed(t, thin)) if isinstance(t, Trajectory) else t for t in result.trajectories]
    return replace(result, trajectories=thin_ones)


def _changed(trajectory: Trajectory, change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Its fields that may be large, changed."""
    changed: dict[str, Any] = {name: change(getattr(trajectory, name)) for name in FIELDS}
    return changed | {"conditioning": {name: change(value) for name, value in trajectory.conditioning.items()}}


def _is_large(value: torch.Tensor) -> bool:
    return bool(value.nbytes >= APART)


def _identity(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
