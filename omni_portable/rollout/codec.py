"""Requests, trajectories and groups as bytes: a tree of plain JSON beside named tensors, in one safetensors blob.

This is how they travel between processes. Nothing is pickled: a receiver can only build the dataclasses that
:data:`TYPES` lists, so a blob from a stranger can be wrong, but cannot run anything.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, TypeAlias

import torch

from omni_portable.contracts.dataplane import GroupTag, ScoredGroup
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.lifecycle import Ack, EngineState
from omni_portable.contracts.media import DistantArtifact, MediaArtifact
from omni_portable.contracts.reward import ComposedReward, RewardSample
from omni_portable.contracts.rollout import (
    EngineHealth,
    Extent,
    RolloutRequest,
    RolloutResult,
    SamplingPlan,
    Schedule,
    Trajectory,
)
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.tokens import TokenPrefix, TokenRequest, TokenTrajectory
from omni_portable.contracts.weights import LoraInfo, TensorInfo, WeightManifest
from omni_portable.rollout.blob import DTYPES, Buffer, described, filled, flat_bytes, join_tensors, split_tensors
from omni_portable.rollout.distant import Bundles, DistantTensor, TensorSource

TYPES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        Ack,
        ComposedReward,
        EngineHealth,
        Extent,
        GroupTag,
        LoraInfo,
        MediaArtifact,
        RewardSample,
        RolloutRequest,
        RolloutResult,
        SamplingPlan,
        Schedule,
        ScoredGroup,
        TeacherOutput,
        TensorInfo,
        TokenPrefix,
        TokenRequest,
        TokenTrajectory,
        Trajectory,
        WeightManifest,
    )
}
"""Name -> dataclass that may be packed."""

ENUMS: Mapping[str, type[Enum]] = {EngineState.__name__: EngineState}
"""Name -> enumeration that may be packed."""

UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What reading raises where a blob was not made by :func:`pack`."""
Part: TypeAlias = "torch.Tensor | memoryview"
"""A row of bytes."""
LARGE = 256 << 10
"""Bytes from which on a tensor travels by itself where many parts may; smaller ones cost less together."""
PLAIN = (str, int, float, bool)
Place: TypeAlias = "tuple[Place, str] | tuple[()]"
"""Where a value is: in what, and which part of it. Only put into words where something is wrong there."""
_KIND = "__kind__"


def pack(value: Any, bundles: Bundles | None = None) -> bytes:
    """Any nesting of the dataclasses of :data:`TYPES`, mappings with str keys, lists, tuples, tensors, bytes, numbers,
    text and None, as bytes.

    A tensor that occurs several times (the conditioning that a group shares) is stored once. Views are stored without
    the rest of their storage; tensors come back on the CPU.

    Args:
        bundles: of distant tensors only the places are packed, and their sources collected here; None fetches them.

    Raises:
        DataError: names the place of a value that cannot be packed.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _Packer(tensors, bundles).plain(value, ())
    return join_tensors(tensors, json.dumps(tree))


def unpack(blob: Buffer, sources: Sequence[TensorSource] = (), fetch: bool = False) -> Any:
    """What :func:`pack` was given, bit for bit (tuples as tuples, mappings as dicts).

    Args:
        sources: of distant tensors, as `bundles` numbered them.
        fetch: bring the elements of these now, each once, in memory of their own.

    Raises:
        DataError: the blob is truncated or was not made by :func:`pack`.
    """
    try:
        tensors, tree = split_tensors(blob)
        return _build(json.loads(tree), _Found(tensors, sources, fetch))
    except UNREADABLE as error:
        raise DataError(f"a packed value of {len(blob)} bytes cannot be read: {error!r}") from error


def pack_parts(value: Any, bundles: Bundles | None = None) -> list[torch.Tensor]:
    """As :func:`pack`, in rows of bytes: first all but the tensors of :data:`LARGE` bytes and more, then each of these.

    A large tensor that is contiguous on the CPU is not copied: nobody may write to it until its part has gone out.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _Packer(tensors, bundles).plain(value, ())
    large = {name: tensor for name, tensor in tensors.items() if tensor.nbytes >= LARGE}
    text = json.dumps({"tree": tree, "parts": {name: described(tensor) for name, tensor in large.items()}})
    blob = join_tensors({name: tensor for name, tensor in tensors.items() if name not in large}, text)
    return [torch.frombuffer(bytearray(blob), dtype=torch.uint8), *(flat_bytes(tensor) for tensor in large.values())]


def unpack_parts(parts: Sequence[Part], sources: Sequence[TensorSource] = ()) -> Any:
    """What :func:`pack_parts` was given, in memory of its own; errors as in :func:`unpack`."""
    first, *others = (part.numpy().data if isinstance(part, torch.Tensor) else part for part in parts)
    try:
        tensors, text = split_tensors(first)
        said = json.loads(text)
        for (name, shape), part in zip(said["parts"].items(), others, strict=True):
            tensors[name] = filled(shape, part)
        return _build(said["tree"], _Found(tensors, sources))
    except UNREADABLE as error:
        raise DataError(f"a packed value in {len(parts)} parts cannot be read: {error!r}") from error


class _Packer:
    """Turns values into plain JSON and collects the tensors, each once."""

    def __init__(self, tensors: dict[str, torch.Tensor], bundles: Bundles | None) -> None:
        self._tensors, self._bundles = tensors, bundles
        self._brought: dict[tuple[int, int], torch.Tensor] = {}
        self._known: dict[tuple[Any, ...], str] = {}

    def plain(self, value: Any, place: Place) -> Any:
        kind: Any = type(value)
        if value is None or kind in PLAIN:
            return value
        if isinstance(value, DistantTensor):
            return self._distant(value)
        if kind is torch.Tensor or isinstance(value, torch.Tensor):
            return {_KIND: "tensor", "name": self._keep(value)}
        if isinstance(value, DistantArtifact):
            return self.plain(value.here(), place)
        if names := _fields(kind):
            held = {name: self.plain(getattr(value, name), (place, f".{name}")) for name in names}
            return {_KIND: kind.__name__, "fields": held}
        if isinstance(value, (list, tuple)):
            items = [self.plain(item, (place, f"[{index}]")) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {_KIND: "tuple", "items": items}
        if isinstance(value, Mapping):
            return self._mapping(value, place)
        if isinstance(value, bytes):
            return {_KIND: "bytes", "data": base64.b64encode(value).decode("ascii")}
        if isinstance(value, Enum) and kind.__name__ in ENUMS:
            return {_KIND: "enum", "type": kind.__name__, "value": value.value}
        if isinstance(value, PLAIN) and not isinstance(value, Enum):
            return value
        raise DataError(
            f"{_said(place)} holds a {kind.__module__}.{kind.__name__}, which cannot travel between processes",
            remedy="keep fields of prompts to numbers, text, bytes, lists and mappings",
        )

    def _mapping(self, value: Mapping[Any, Any], place: Place) -> dict[str, Any]:
        for key in value:
            if not isinstance(key, str):
                raise DataError(f"{_said(place)} has the key {key!r}; keys must be text to travel between processes")
        held = {key: self.plain(item, (place, f"[{key!r}]")) for key, item in value.items()}
        return {_KIND: "dict", "items": held} if _KIND in held else held

    def _distant(self, tensor: DistantTensor) -> dict[str, Any]:
        if self._bundles is None:
            known = (id(tensor.source), tensor.number)
            if known not in self._brought:  # held on to, so that its address stays its own
                self._brought[known] = tensor.here()
            return {_KIND: "tensor", "name": self._keep(self._brought[known])}
        source, number = self._bundles.place(tensor)
        return {_KIND: "distant", "source": source, "number": number} | described(tensor)

    def _keep(self, tensor: torch.Tensor) -> str:
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() == 0 or identity not in self._known:
            name = str(len(self._tensors))
            self._tensors[name] = tensor
            self._known[identity] = name
        return self._known[identity]


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass that may be packed; none for any other type."""
    return tuple(field.name for field in fields(kind)) if TYPES.get(kind.__name__) is kind else ()


def _said(place: Place) -> str:
    return _said(place[0]) + place[1] if place else "value"


class _Found:
    """Tensors of a packed value."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], sources: Sequence[TensorSource], fetch: bool = False
    ) -> None:
        self._tensors, self._sources, self._fetch = tensors, sources, fetch
        self._distant: dict[tuple[int, int], torch.Tensor] = {}

    def named(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def distant(self, tree: Mapping[str, Any]) -> torch.Tensor:
        place = (int(tree["source"]), int(tree["number"]))
        if place not in self._distant:
            source, shape = self._sources[place[0]], [int(extent) for extent in tree["shape"]]
            if min(*shape, *place, 0) < 0:
                raise ValueError(f"a distant tensor at {place} cannot have the shape {shape}")
            tensor = DistantTensor(shape, DTYPES[tree["dtype"]], source, place[1])
            self._distant[place] = tensor.here() if self._fetch else tensor
        return self._distant[place]


def _build(tree: Any, tensors: _Found) -> Any:
    if type(tree) in PLAIN or tree is None:
        return tree
    if isinstance(tree, list):
        return [_build(item, tensors) for item in tree]
    kind = tree.get(_KIND)
    if kind is None:
        return {key: _build(item, tensors) for key, item in tree.items()}
    if kind == "tensor":
        return tensors.named(tree["name"])
    if kind == "distant":
        return tensors.distant(tree)
    if kind == "bytes":
        return base64.b64decode(tree["data"], validate=True)
    if kind == "enum":
        return ENUMS[tree["type"]](tree["value"])
    if kind == "tuple":
        return tuple(_build(item, tensors) for item in tree["items"])
    if kind == "dict":
        return {key: _build(item, tensors) for key, item in tree["items"].items()}
    return TYPES[kind](**{key: _build(item, tensors) for key, item in tree["fields"].items()})
