"""A weight stream cut into buckets of bounded size, each tensor checked against the manifest on the way."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from omni_backends.sync.channel import Filled
from omni_backends.sync.wire import ALIGNMENT, Bucket, Piece, tensor_bytes
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import WeightManifest, WeightStream
from omni_portable.models.weights import dtype_name


def buckets(stream: WeightStream, sync: str, slot_bytes: int, slots: int) -> Iterator[tuple[Bucket, Filled]]:
    """Pieces in the stream's order; tensors larger than a slot are cut, small ones share a bucket.

    Args:
        sync: id of the sync.
        slot_bytes: a multiple of :data:`wire.ALIGNMENT`.
        slots: bucket k lies in slot k mod `slots`.

    Raises:
        WeightSyncError: a tensor that the manifest does not announce, came twice, or has another shape or dtype, or
            the stream ends without an announced one; names it.
    """
    index, used = 0, 0
    filled: Filled = []
    for name, data in _bytes_of(stream):
        start = 0
        while start < data.numel() or not data.numel():
            if used >= slot_bytes:
                yield _bucket(sync, index, filled), filled
                index, used, filled = index + 1, 0, []
            length = min(data.numel() - start, slot_bytes - used)
            offset = (index % slots) * slot_bytes + used
            filled.append((Piece(name, start, length, offset), data[start : start + length]))
            start += length
            used += aligned(length)
            if not data.numel():
                break
    if filled:
        yield _bucket(sync, index, filled), filled


def _bucket(sync: str, index: int, filled: Filled) -> Bucket:
    return Bucket(sync, index, tuple(piece for piece, _ in filled))


def _bytes_of(stream: WeightStream) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and raw bytes (uint8, contiguous) of every tensor of the stream."""
    missing = dict.fromkeys(stream.manifest.tensors)
    for name, tensor in stream:
        _check(name, tensor, stream.manifest, missing)
        del missing[name]
        yield name, tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if missing:
        raise WeightSyncError(
            f"the weight stream ended without {len(missing)} of {len(stream.manifest.tensors)} tensors, first "
            f"'{next(iter(missing))}'"
        )


def _check(name: str, tensor: torch.Tensor, manifest: WeightManifest, missing: dict[str, None]) -> None:
    if name not in manifest.tensors:
        raise WeightSyncError(f"the weight stream delivered '{name}', which its manifest does not announce")
    if name not in missing:
        raise WeightSyncError(f"the weight stream delivered '{name}' twice")
    announced = manifest.tensors[name]
    for what, expected, got in (
        ("shape", announced.shape, tuple(tensor.shape)),
        ("dtype", announced.dtype, dtype_name(tensor.dtype)),
    ):
        if expected != got:
            raise WeightSyncError(f"the tensor '{name}' has {what} {got}, announced was {expected}")


def whole_size(manifest: WeightManifest) -> int:
    """Bytes of all buckets of an update together, each tensor rounded up to the alignment."""
    return sum(aligned(tensor_bytes(name, info)) for name, info in manifest.tensors.items())


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
