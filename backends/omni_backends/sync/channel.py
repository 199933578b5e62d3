"""How the bytes of a bucket get from the sender to all workers; one pair of classes per kind of channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from omni_backends.sync.segment import KIND as SHARED_MEMORY
from omni_backends.sync.segment import Segment
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

    def prepare(self, whole: int) -> None:
        """A sync begins that brings `whole` bytes, gaps between tensors included; may change `slots`.

        Raises:
            WeightSyncError: there is no room for its buckets.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What a worker needs to open its end: plain values."""
        ...

    def deliver(self, filled: Filled) -> None:
        """Bring the bytes where the workers find them; runs in a thread of its own, one call at a time."""
        ...

    def cancel(self) -> None:
        """End a `deliver` that waits for workers."""
        ...

    def arrived(self) -> None:
        """All workers hold what the last sync brought."""
        ...

    def close(self) -> None: ...


class ReceiveChannel(Protocol):
    """A worker's end. With `lasting`, pieces stay where they are until the sync ends, beyond their bucket's answer; a
    tensor's pieces then lie side by side, and `place` says where (it differs between two syncs unless the later one
    overwrites what the former brought)."""

    lasting: bool
    place: tuple[int, ...]

    def fetch(self, bucket: Bucket) -> torch.Tensor:
        """Memory (uint8, any device) in which the pieces lie at their offsets until the bucket is answered."""
        ...

    def close(self) -> None: ...


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
        from omni_backends.sync.memory import SharedMemorySender

        return SharedMemorySender(slot_bytes, kept=False)
    if channel == "ipc":
        from omni_backends.sync.ipc import IpcSender

        return IpcSender(slot_bytes, device)
    remedy = "give the open BroadcastSender in place of its name" if channel == "broadcast" else ""
    raise ConfigError(f"the weight channel '{channel}' cannot be opened by name", remedy=remedy, choices=CHANNELS)


def open_receiver(place: Mapping[str, Any], rank: int, mapped: dict[tuple[int, ...], Segment]) -> ReceiveChannel:
    """The worker's end of what :meth:`SendChannel.describe` described.

    Args:
        rank: of this worker among all workers, from 0.
        mapped: shared memory that this worker keeps mapped between syncs.

    Raises:
        ConfigError: a kind of channel that does not exist.
        WeightSyncError: it cannot be opened.
    """
    kind = place.get("kind")
    if kind == SHARED_MEMORY:
        from omni_backends.sync.memory import SharedMemoryReceiver

        return SharedMemoryReceiver(place, mapped)
    if kind == "ipc":
        from omni_backends.sync.ipc import IpcReceiver

        return IpcReceiver(place)
    if kind == "broadcast":
        from omni_backends.sync.broadcast import BroadcastReceiver

        return BroadcastReceiver(place, rank)
    raise ConfigError(f"a weight update comes through a channel of kind '{kind}'", choices=CHANNELS)
