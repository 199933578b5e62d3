"""Large tensors of samples stay in the cluster's object store until somebody computes with them.

As with media (:mod:`media`), the process that makes them puts what is large apart, as return values of the call, which
the trainer owns. The trainer knows shapes; it hands references to teachers, to the ranks of its train engine and to the
data plane. Tensors of one sample are one object, those that several samples of a prompt share (its conditioning, what
its pictures were encoded to) another, and those that several prompts share a third.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from omni_portable.contracts.rollout import RolloutResult, Trajectory
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.rollout.blob import flat_bytes
from omni_portable.rollout.distant import DistantTensor, Rows

Parts = Sequence[Any]
"""Arrays of bytes, one for each tensor, as Ray keeps them."""
FIELDS = ("latents", "next_latents", "final_latents")
"""Of a denoised sample, that may be large; so may its conditioning. Of a response these are its tokens and the encoded
prompt; its log-probs and versions are read in the trainer and come with the answer."""


class Outgoing(Rows):
    """Rows that are being filled, where the tensors were made."""

    def add(self, tensor: torch.Tensor) -> DistantTensor:
        """Take a tensor in, with its own bytes only."""
        self.parts.append(flat_bytes(tensor).numpy())
        return DistantTensor(tensor.shape, tensor.dtype, self, len(self.parts) - 1)


class Outbox:
    """The sources of a drawing call.

    Args:
        groups: id of each request's group by its own, in the order of the call.
    """

    def __init__(self, groups: Mapping[str, str]) -> None:
        self._groups = groups
        self._own = {request: Outgoing() for request in groups}
        self._common = {group: Outgoing() for group in groups.values()}
        self._shared = Outgoing()

    @property
    def sources(self) -> list[Outgoing]:
        """Of each request, then of each group, then of all."""
        return [*self._own.values(), *self._common.values(), self._shared]

    def of(self, requests: set[str]) -> Outgoing:
        """Of what these have in common."""
        groups = {self._groups[request] for request in requests}
        if len(requests) == 1:
            return self._own[next(iter(requests))]
        return self._common[groups.pop()] if len(groups) == 1 else self._shared


def sources_of(groups: Sequence[str]) -> int:
    """How many an :class:`Outbox` has for requests of these groups."""
    return len(groups) + len(set(groups)) + 1


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


def thinned(result: RolloutResult, outbox: Outbox, least: int) -> RolloutResult:
    """The drawing side: the result with distant tensors in place of those of `least` bytes and more.

    Args:
        outbox: that these are put into.
    """
    owners: dict[Any, set[str]] = defaultdict(set)
    for trajectory in result.trajectories:
        for tensor in _held(trajectory):
            owners[_identity(tensor)].add(trajectory.request.request_id)
    made: dict[Any, DistantTensor] = {}

    def thin(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.nbytes < least:
            return tensor
        identity = _identity(tensor)
        if identity not in made:
            made[identity] = outbox.of(owners[identity]).add(tensor)
        return made[identity]

    return replace(result, trajectories=[_changed(trajectory, thin) for trajectory in result.trajectories])


def thinned_outputs(outputs: Sequence[TeacherOutput], sources: Sequence[Outgoing], least: int) -> list[TeacherOutput]:
    """A teacher's side: its outputs with distant tensors in place of those of `least` bytes and more, each put into its
    own source. What is not finite is not put apart, so that whoever asked can see and refuse it."""

    def thin(tensor: torch.Tensor, source: Outgoing) -> torch.Tensor:
        return source.add(tensor) if tensor.nbytes >= least and bool(tensor.isfinite().all()) else tensor

    thin_ones = []
    for output, source in zip(outputs, sources, strict=True):
        changed: dict[str, Any] = {name: thin(tensor, source) for name, tensor in output.tensors().items()}
        thin_ones.append(replace(output, **changed))
    return thin_ones


def _held(trajectory: AnyTrajectory) -> list[torch.Tensor]:
    """Its tensors that may be large."""
    if isinstance(trajectory, Trajectory):
        return [*(getattr(trajectory, name) for name in FIELDS), *trajectory.conditioning.values()]
    return [trajectory.response_ids, *trajectory.inputs.values()]


def _changed(trajectory: AnyTrajectory, change: Callable[[torch.Tensor], torch.Tensor]) -> AnyTrajectory:
    """With these changed."""
    if isinstance(trajectory, Trajectory):
        changed: dict[str, Any] = {name: change(getattr(trajectory, name)) for name in FIELDS}
        conditioning = {name: change(value) for name, value in trajectory.conditioning.items()}
        return replace(trajectory, **changed, conditioning=conditioning)
    inputs = {name: change(value) for name, value in trajectory.inputs.items()}
    return replace(trajectory, response_ids=change(trajectory.response_ids), inputs=inputs)


def _identity(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
