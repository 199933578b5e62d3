"""A message between the driver and a rank: any picklable object of this program, its tensors beside it.

Tensors are left out of the pickle and laid out in one run of bytes, each with its own bytes only (a row of a large
tensor is sent as that row), so that a carrier may put them where it likes: shared memory between processes of one
machine, or behind the pickle where a message travels as bytes, or apart from it. Both ends are this program, and a
carrier must see to it that nobody else can write to it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_portable.contracts.ranks import Parts
from omni_portable.rollout.blob import described, filled, flat_bytes
from omni_portable.rollout.distant import Bundles, DistantTensor, TensorSource

MAX_MESSAGE = 1 << 30
"""Bytes of a message without its tensors, at most."""
ALIGNMENT = 64
APART = 64 << 10
"""Bytes of all tensors of a message from which on they may travel apart."""
HEADER = 8
"""Bytes that say how long the pickle is, where a message is bytes."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies among the others; `dtype` and `shape` as it is."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements."""
        return int(torch.Size(self.shape).numel())


@dataclass(frozen=True)
class Parcel:
    """A message taken apart.

    Args:
        body: its pickle, without the tensors.
        tensors / places: what was left out, and where each goes.
        size: bytes of all tensors.
    """

    body: bytes
    tensors: Sequence[torch.Tensor]
    places: list[Place]
    size: int

    def lay(self, buffer: memoryview | bytearray, start: int = 0) -> None:
        """Copy the tensors into `size` bytes of a buffer from `start` on."""
        for tensor, place in zip(self.tensors, self.places, strict=True):
            if place.count:
                view = torch.frombuffer(buffer, dtype=place.dtype, count=place.count, offset=start + place.offset)
                view.copy_(tensor.detach().reshape(-1))
                del view


def apart(message: object, bundles: Bundles | None = None) -> Parcel:
    """Take a message apart; distant tensors keep their places in `bundles`, where there are some, else are fetched."""
    file = io.BytesIO()
    pickler = _Pickler(file, bundles)
    pickler.dump(message)
    places, offset = [], 0
    for tensor in pickler.tensors:
        places.append(Place(offset, tensor.dtype, tuple(tensor.shape)))
        offset += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return Parcel(file.getvalue(), pickler.tensors, places, offset)


def together(
    body: bytes,
    places: Sequence[Place],
    buffer: memoryview | bytearray | None,
    start: int = 0,
    distant: Sequence[Parts] = (),
) -> Any:
    """The message; tensors are copied out of the buffer (None where all are empty), detached, on the CPU, and distant
    ones out of their bundles' parts."""
    return _Unpickler(io.BytesIO(body), [_taken(place, buffer, start) for place in places], distant).load()


def to_bytes(message: object, bundles: Bundles | None = None) -> bytes:
    """A message as bytes: the length of the pickle, the pickle, the tensors; `bundles` as for :func:`apart`.

    Raises:
        ValueError: it has more than `MAX_MESSAGE` bytes beside its tensors.
    """
    parcel = apart(message, bundles)
    return _written(parcel, parcel.size)


def to_parts(message: object) -> tuple[bytes, Parts]:
    """A message as bytes, and its tensors beside it, each a row of bytes; those of less than `APART` bytes together are
    in the bytes. Nobody may write to the tensors before their parts have gone out.

    Raises:
        ValueError: as of :func:`to_bytes`.
    """
    parcel = apart(message)
    if parcel.size < APART:
        return _written(parcel, parcel.size), []
    return _written(parcel, 0), [flat_bytes(tensor).numpy().data for tensor in parcel.tensors]


def from_bytes(blob: bytes, distant: Sequence[Parts] = (), source: TensorSource | None = None) -> Any:
    """What :func:`to_bytes` was given, with the parts of its `bundles`; or what :func:`to_parts` was given, with its
    tensors distant ones of `source`, which has the parts."""
    length = int.from_bytes(blob[:HEADER], "little")
    places, body, beside = pickle.loads(blob[HEADER : HEADER + length])  # noqa: S301 - of this program only
    if beside:
        if source is None:
            raise ValueError("a message whose tensors travelled apart came without them")
        tensors = [DistantTensor(place.shape, place.dtype, source, at) for at, place in enumerate(places)]
        return _Unpickler(io.BytesIO(body), tensors, distant).load()
    return together(body, places, bytearray(memoryview(blob)[_tensors_at(length) :]), distant=distant)


def _written(parcel: Parcel, size: int) -> bytes:
    """A parcel as bytes; `size`: of its tensors there, 0 where they travel apart."""
    head = pickle.dumps((parcel.places, parcel.body, size < parcel.size), pickle.HIGHEST_PROTOCOL)
    if len(head) > MAX_MESSAGE:
        raise ValueError(f"a message to or from a rank has {len(head)} bytes beside its tensors, above {MAX_MESSAGE}")
    start = _tensors_at(len(head))
    whole = bytearray(start + size)
    whole[:HEADER] = len(head).to_bytes(HEADER, "little")
    whole[HEADER : HEADER + len(head)] = head
    if size:
        parcel.lay(whole, start)
    return bytes(whole)


def _tensors_at(length: int) -> int:
    return -(-(HEADER + length) // ALIGNMENT) * ALIGNMENT


def _taken(place: Place, buffer: memoryview | bytearray | None, start: int) -> torch.Tensor:
    if not place.count or buffer is None:
        return torch.empty(place.shape, dtype=place.dtype)
    view = torch.frombuffer(buffer, dtype=place.dtype, count=place.count, offset=start + place.offset)
    return view.clone().reshape(place.shape)


class _Pickler(pickle.Pickler):
    """Leaves tensors out, in the order in which they come; a tensor that comes again is sent once."""

    def __init__(self, file: io.BytesIO, bundles: Bundles | None) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._bundles = bundles
        self._seen: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        if isinstance(obj, DistantTensor) and self._bundles is not None:
            return *self._bundles.place(obj), described(obj)
        if id(obj) not in self._seen:
            self._seen[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._seen[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor], distant: Sequence[Parts]) -> None:
        super().__init__(file)
        self._tensors, self._distant = tensors, distant
        self._filled: dict[tuple[int, int], torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        if isinstance(pid, int):
            return self._tensors[pid]
        source, index, said = pid
        if (source, index) not in self._filled:
            self._filled[source, index] = filled(said, self._distant[source][index])
        return self._filled[source, index]
