"""How the bytes of a bucket get from the sender to all workers; one pair of classes per kind of channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from omni_backends.sync.segment import KIND as SHARED_MEMORY
from omni_backends.sync.segment import Segment, attach_segment, create_segment
from omni_backends.sync.wire import Bucket, Piece
from omni_portable.contracts.errors import ConfigError

CHANNELS = (SHARED_MEMORY, "ipc", "broadcast")

Filled = list[tuple[Piece, torch.Tensor]]
"""Pieces of a bucket and their bytes (uint8, on any device)."""


class SendChannel(Protocol):
    """The sender's end.

    `slots` buckets of `slot_bytes` may be under way at a time; slot k starts at byte `k * slot_bytes` of the segment.
    With `rendezvous` the workers must be called while `deliver` runs, otherwise after it has returned.
    """

    name: str
    slots: int
    slot_bytes: int
    rendezvous: bool

    def describe(self) -> dict[str, Any]:
        """What a worker needs to open its end: plain values."""
        ...

    def deliver(self, filled: Filled) -> None:
        """Bring the bytes where the workers find them; runs in a thread of its own, one call at a time."""
        ...

    def cancel(self) -> None:
        """End a `deliver` that waits for workers."""
        ...

    def close(self) -> None: ...


class ReceiveChannel(Protocol):
    """A worker's end."""

    def fetch(self, bucket: Bucket) -> torch.Tensor:
        """Memory (uint8, any device) in which the pieces lie at their offsets until the bucket is answered."""
        ...

    def close(self) -> None: ...


class SharedMemorySender:
    """Through shared memory of the host: for CPU workers, and by host staging for workers on any device.

    Two slots, so that one is filled while the workers read the other.

    Args:
        slot_bytes: of one bucket; twice as much is reserved.
    """

    name = SHARED_MEMORY
    slots = 2
    rendezvous = False

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._segment = create_segment(self.slots * slot_bytes)

    def describe(self) -> dict[str, Any]:
        return self._segment.describe()

    def deliver(self, filled: Filled) -> None:
        for piece, data in filled:
            self._segment.memory[piece.offset : piece.offset + piece.length].copy_(data)

    def cancel(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self._segment.close()


class SharedMemoryReceiver:
    """See :class:`SharedMemorySender`."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self._segment: Segment = attach_segment(place)

    def fetch(self, bucket: Bucket) -> torch.Tensor:
        return self._segment.memory

    def close(self) -> None:
        self._segment.close()


def open_sender(channel: str | SendChannel, slot_bytes: int, device: torch.device) -> SendChannel:
    """The channel of that name, or the given one.

    Args:
        device: where the first tensor of the stream lies; an 'ipc' channel keeps its buckets there.

    Raises:
        ConfigError: no such channel, or one that needs a connection which must be given.
        WeightSyncError: the channel cannot be opened.
    """
    if not isinstance(channel, str):
        return channel
    if channel == SHARED_MEMORY:
        return SharedMemorySender(slot_bytes)
    if channel == "ipc":
        from omni_backends.sync.ipc import IpcSender

        return IpcSender(slot_bytes, device)
    remedy = "give the open BroadcastSender in place of its name" if channel == "broadcast" else ""
    raise ConfigError(f"the weight channel '{channel}' cannot be opened by name", remedy=remedy, choices=CHANNELS)


def open_receiver(place: Mapping[str, Any], rank: int) -> ReceiveChannel:
    """The worker's end of what :meth:`SendChannel.describe` described.

    Args:
        rank: of this worker among all workers, from 0.

    Raises:
        ConfigError: a kind of channel that does not exist.
        WeightSyncError: it cannot be opened.
    """
    kind = place.get("kind")
    if kind == SHARED_MEMORY:
        return SharedMemoryReceiver(place)
    if kind == "ipc":
        from omni_backends.sync.ipc import IpcReceiver

        return IpcReceiver(place)
    if kind == "broadcast":
        from omni_backends.sync.broadcast import BroadcastReceiver

        return BroadcastReceiver(place, rank)
    raise ConfigError(f"a weight update comes through a channel of kind '{kind}'", choices=CHANNELS)
