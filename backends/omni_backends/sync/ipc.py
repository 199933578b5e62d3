"""Weights through device memory that two processes of one machine map: torch's own IPC handles (torch.cuda, HIP too).

Written against torch's API and not run on hardware: this project's tests have no accelerator. The handle travels as
numbers and base64 text; nothing is pickled.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from omni_backends.sync.wire import Bucket, Piece
from omni_portable.contracts.errors import ConfigError, WeightSyncError

KIND = "ipc"
_FIELDS = (
    "storage_device",
    "storage_handle",
    "storage_size_bytes",
    "storage_offset_bytes",
    "ref_counter_handle",
    "ref_counter_offset",
    "event_handle",
    "event_sync_required",
)
"""What `UntypedStorage._share_cuda_` gives, in its order."""


class IpcSender:
    """Two slots on the sender's device, which workers map.

    Args:
        slot_bytes: of one bucket; twice as much is allocated.
        device: must be of torch's 'cuda' type, and the workers' device as well.
    """

    name = KIND
    slots = 2
    rendezvous = False

    def __init__(self, slot_bytes: int, device: torch.device) -> None:
        if device.type != "cuda":
            raise ConfigError(
                f"the weight channel 'ipc' shares memory of an accelerator, not of '{device.type}'",
                remedy="use the channel that the device names first",
                choices=("shared_memory",),
            )
        self.slot_bytes = slot_bytes
        self._memory = torch.empty(self.slots * slot_bytes, dtype=torch.uint8, device=device)

    def prepare(self, whole: int) -> None:
        """The slots are there."""

    def describe(self) -> dict[str, Any]:
        """The memory's handle; each worker takes one reference of its own."""
        try:
            shared = self._memory.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise WeightSyncError(
                f"the device's memory cannot be shared with another process: {error}",
                remedy="start without expandable segments, or use the channel 'shared_memory'",
            ) from error
        values = {name: _encode(value) for name, value in zip(_FIELDS, shared, strict=True)}
        return {"kind": KIND, "size": self._memory.numel(), "offset": self._memory.storage_offset(), **values}

    def deliver(self, filled: list[tuple[Piece, torch.Tensor]]) -> None:
        for piece, data in filled:
            self._memory[piece.offset : piece.offset + piece.length].copy_(data)
        torch.cuda.synchronize(self._memory.device)

    def cancel(self) -> None:
        """Nothing waits."""

    def arrived(self) -> None:
        """The slots are used again."""

    def close(self) -> None:
        del self._memory


class IpcReceiver:
    """See :class:`IpcSender`."""

    lasting = False
    place: tuple[int, ...] = ()

    def __init__(self, place: Mapping[str, Any]) -> None:
        values = [_decode(place[name]) for name in _FIELDS]
        view = (torch.Tensor, torch.Size((int(place["size"]),)), (1,), int(place["offset"]))
        arguments = (*view, torch.UntypedStorage, torch.uint8, *values[:4], False, *values[4:])
        rebuild: Callable[..., torch.Tensor] = rebuild_cuda_tensor
        self._memory = rebuild(*arguments)

    def fetch(self, bucket: Bucket) -> torch.Tensor:
        return self._memory

    def close(self) -> None:
        del self._memory


def _encode(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def _decode(value: Any) -> Any:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, Mapping) else value
