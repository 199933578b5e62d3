"""The channel of the host: shared memory, for CPU workers, and by host staging for workers on any device.

New memory is slow: the kernel has to clear every page, and every process that maps it has to be given each page. So an
engine keeps its channel from sync to sync. Where there is room for it twice, a whole update lies in the segment until
the sync ends; workers verify it there and need no staging memory of their own. The two segments take turns: while one
is filled, the other holds the former update, which is what workers go back to where the new one fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from omni_backends.sync.channel import Filled
from omni_backends.sync.segment import KIND, Segment, attach_segment, create_segment, free_bytes
from omni_backends.sync.wire import ALIGNMENT, Bucket, tensor_bytes
from omni_portable.contracts.weights import WeightManifest

ROOM = 64 << 20
"""Bytes of shared memory that are left to others where a whole update is put there."""
MAPPED = 2
"""Kept segments that a worker has mapped: those that take turns."""


class SharedMemorySender:
    """Two slots, so that one is filled while the workers read the other; or as many as the update has buckets.

    Args:
        slot_bytes: of one bucket.
        kept: for many syncs with the same workers, until :meth:`close`; the memory is used again.

    Attributes:
        lasting: since :meth:`prepare`: the whole update lies in the segment until the sync ends, and longer where it is
            kept.
    """

    name = KIND
    rendezvous = False

    def __init__(self, slot_bytes: int, *, kept: bool = True) -> None:
        self._bucket, self.slot_bytes, self.slots = slot_bytes, slot_bytes, 2
        self._kept = kept
        self._segments: list[Segment | None] = [None, None]
        self._turn = 0
        self.lasting = False
        self._places: dict[str, int] = {}

    def prepare(self, whole: int) -> None:
        self.slot_bytes = max(ALIGNMENT, min(self._bucket, whole))
        count = max(1, -(-whole // self.slot_bytes))
        self.lasting = count <= 2 or self._room(count * self.slot_bytes)
        self.slots = count if self.lasting else 2
        if not self.lasting:
            self._release(1 - self._turn)
        self._places = {}
        held, size = self._segments[self._turn], self.slots * self.slot_bytes
        if held is None or held.size < size:
            self._release(self._turn)
            self._segments[self._turn] = create_segment(size)

    def describe(self) -> dict[str, Any]:
        return {**self._segment.describe(), "kept": self._kept, "lasting": self.lasting}

    def deliver(self, filled: Filled) -> None:
        memory = self._segment.memory
        for piece, data in filled:
            self._places.setdefault(piece.name, piece.offset - piece.start)
            memory[piece.offset : piece.offset + piece.length].copy_(data)

    def held(self, manifest: WeightManifest) -> dict[str, torch.Tensor] | None:
        """The tensors of the sync that arrived last, where they lie; None where their memory was used again.

        They stay as they are until the second sync from now ends.
        """
        if not (self._kept and self.lasting):
            return None
        segment = self._segments[1 - self._turn]
        assert segment is not None
        found = {}
        for name, info in manifest.tensors.items():
            start = self._places[name]
            data = segment.memory[start : start + tensor_bytes(name, info)]
            found[name] = data.view(getattr(torch, info.dtype)).reshape(info.shape)
        return found

    def cancel(self) -> None:
        """Nothing waits."""

    def arrived(self) -> None:
        if self.lasting and self._kept:
            self._turn = 1 - self._turn

    def close(self) -> None:
        self._release(0)
        self._release(1)

    @property
    def _segment(self) -> Segment:
        segment = self._segments[self._turn]
        assert segment is not None
        return segment

    def _room(self, size: int) -> bool:
        """Whether a whole update fits, twice where another one follows, beside what is held already."""
        held = sum(segment.size for segment in self._segments if segment is not None)
        return free_bytes() + held >= size * (2 if self._kept else 1) + ROOM

    def _release(self, turn: int) -> None:
        segment, self._segments[turn] = self._segments[turn], None
        if segment is not None:
            segment.close()


class SharedMemoryReceiver:
    """See :class:`SharedMemorySender`.

    Args:
        place: what the sender described.
        mapped: segments that stay mapped for the syncs that follow, the one used last at the end. A file that is open
            keeps its inode, so that what has the same identity is the same memory.
    """

    def __init__(self, place: Mapping[str, Any], mapped: dict[tuple[int, ...], Segment]) -> None:
        self.place = tuple(int(place[name]) for name in ("process", "descriptor", "device", "inode", "size"))
        self.lasting = bool(place.get("lasting", False))
        self._kept = bool(place.get("kept", False))
        found = mapped.pop(self.place, None) if self._kept else None
        self._segment: Segment = found or attach_segment(place)
        if self._kept:
            mapped[self.place] = self._segment
            while len(mapped) > MAPPED:
                mapped.pop(next(iter(mapped))).close()  # what still refers to its tensors keeps them

    def fetch(self, bucket: Bucket) -> torch.Tensor:
        return self._segment.memory

    def close(self) -> None:
        if not self._kept:
            self._segment.close()
