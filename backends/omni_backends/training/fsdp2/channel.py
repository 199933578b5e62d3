"""Messages between the driver and one rank: a pipe between parent and child, tensors in shared memory beside it.

A message is pickled without its tensors, which are packed into one shared-memory segment, each with its own bytes only
(a row of a large tensor is sent as that row). The receiver copies them out and removes the segment, so a message takes
memory only while it is on its way. Pickle is safe here because both ends are this program: the pipe is an anonymous
pair of file descriptors that the child was started with, and nothing on a network can reach it.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch

from omni_backends.training.fsdp2.failure import RankError

MAX_MESSAGE = 1 << 30
"""Bytes of a message without its tensors, at most."""
ALIGNMENT = 64


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the segment; `dtype` and `shape` as it is."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements."""
        return int(torch.Size(self.shape).numel())


class _Pickler(pickle.Pickler):
    """Leaves tensors out, in the order in which they come; a tensor that comes again is sent once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if id(obj) not in self._seen:
            self._seen[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._seen[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        return self._tensors[pid]


class Channel:
    """One end of the connection.

    Args:
        connection: this end of the pipe.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._unread: str = ""

    def send(self, message: object) -> None:
        """Send any picklable object that holds plain tensors; they arrive detached, on the CPU.

        Raises:
            RankError: shared memory has no room for the tensors.
            OSError: the other end is gone.
        """
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(message)
        places, size = _arrange(pickler.tensors)
        name = _fill(pickler.tensors, places, size) if size else ""
        self._unread = name
        self.connection.send_bytes(pickle.dumps((name, places, file.getvalue()), pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """The next message.

        Raises:
            EOFError / OSError: the other end is gone.
        """
        raw = self.connection.recv_bytes(MAX_MESSAGE)
        name, places, body = pickle.loads(raw)  # noqa: S301 - between parent and child only, see above
        return _Unpickler(io.BytesIO(body), _take(name, places) if name else _empty(places)).load()

    def close(self) -> None:
        """Close this end, and remove what was sent last in case nobody read it."""
        self.connection.close()
        if self._unread:
            try:
                segment = SharedMemory(self._unread)
            except FileNotFoundError:  # it was read, as it should be
                return
            segment.close()
            segment.unlink()


def _arrange(tensors: list[torch.Tensor]) -> tuple[list[Place], int]:
    places, offset = [], 0
    for tensor in tensors:
        places.append(Place(offset, tensor.dtype, tuple(tensor.shape)))
        offset += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return places, offset


def _fill(tensors: list[torch.Tensor], places: list[Place], size: int) -> str:
    """Name of a new segment that holds the tensors; its memory is reserved before it is written to."""
    segment = SharedMemory(create=True, size=size)
    try:
        _reserve(segment, size)
        for tensor, place in zip(tensors, places, strict=True):
            if place.count:
                view = torch.frombuffer(segment.buf, dtype=place.dtype, count=place.count, offset=place.offset)
                view.copy_(tensor.detach().reshape(-1))
                del view
    except BaseException:
        segment.close()
        segment.unlink()
        raise
    segment.close()
    return segment.name


def _reserve(segment: SharedMemory, size: int) -> None:
    """Writing to pages that the system cannot provide would kill this process."""
    descriptor = os.open(f"/dev/shm/{segment.name.lstrip('/')}", os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise RankError(
            f"shared memory (/dev/shm) has no room for the {size} bytes that go to or from a rank: {error}",
            remedy="enlarge it (docker run --shm-size=8g), or use smaller batches",
        ) from error
    finally:
        os.close(descriptor)


def _take(name: str, places: list[Place]) -> list[torch.Tensor]:
    segment = SharedMemory(name)
    try:
        return [_copy(segment, place) for place in places]
    finally:
        segment.close()
        segment.unlink()


def _copy(segment: SharedMemory, place: Place) -> torch.Tensor:
    if not place.count:
        return torch.empty(place.shape, dtype=place.dtype)
    view = torch.frombuffer(segment.buf, dtype=place.dtype, count=place.count, offset=place.offset)
    return view.clone().reshape(place.shape)


def _empty(places: list[Place]) -> list[torch.Tensor]:
    return [torch.empty(place.shape, dtype=place.dtype) for place in places]
