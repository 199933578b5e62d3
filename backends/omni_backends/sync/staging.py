"""Tensors on their way into a worker: put together from pieces, verified, and kept on the host until all are there."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch

from omni_backends.sync.target import Slice
from omni_backends.sync.wire import ALIGNMENT, Bucket, Piece, tensor_bytes
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import TensorInfo, WeightManifest
from omni_portable.models.weights import Hasher

THREADS = min(4, os.cpu_count() or 1)
"""Tensors of one bucket are verified side by side: hashing and copying leave the interpreter to others."""
SMALL = 1 << 20
"""Bytes of a bucket for which threads are not worth their start."""
CHUNK = 1 << 20
"""Bytes that are copied, hashed and checked one after the other, while they are in the processor's cache."""

SliceOf = Callable[[str, tuple[int, ...]], Slice | None]


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass
class _Partial:
    """A tensor that has begun to arrive: its memory, and what is known of the bytes so far."""

    data: torch.Tensor
    received: int = 0
    finite: bool = True
    hash: _Hash = field(default_factory=Hasher)


class Staging:
    """Receives the pieces of one update.

    Args:
        manifest: what is announced.
        slice_of: the part of each tensor to keep.
        lasting: the channel's memory stays as it is until the update ends, so that nothing is copied out of it.
    """

    def __init__(self, manifest: WeightManifest, slice_of: SliceOf, *, lasting: bool = False) -> None:
        self._announced = manifest.tensors
        self.lasting = lasting
        self._slices = {name: slice_of(name, info.shape) for name, info in manifest.tensors.items()}
        self._partial: dict[str, _Partial] = {}
        self._whole: dict[str, torch.Tensor] = {}
        for name, cut in self._slices.items():
            _check_slice(name, self._announced[name], cut)

    def add(self, bucket: Bucket, memory: torch.Tensor) -> None:
        """Take a bucket's pieces out of `memory` (uint8); where that does not last, nothing of it is referred to
        afterwards.

        Raises:
            WeightSyncError: a piece that is not announced, does not fit, or whose tensor is not what was announced
                (checksum, finite values); names the tensor.
        """
        if len({piece.name for piece in bucket.pieces}) != len(bucket.pieces):
            raise WeightSyncError(f"bucket {bucket.index} holds two pieces of one tensor")
        for piece in bucket.pieces:
            self._check_piece(piece, memory)
        if bucket.bytes < SMALL:
            staged = [self._take(piece, memory) for piece in bucket.pieces]
        else:
            with ThreadPoolExecutor(THREADS) as pool:
                staged = list(pool.map(lambda piece: self._take(piece, memory), bucket.pieces))
        for piece, tensor in zip(bucket.pieces, staged, strict=True):
            if tensor is not None:
                self._partial.pop(piece.name, None)
                self._whole[piece.name] = tensor

    def complete(self) -> dict[str, torch.Tensor]:
        """All tensors, in the manifest's order.

        Raises:
            WeightSyncError: some are missing; names the first.
        """
        missing = [name for name in self._announced if name not in self._whole]
        if missing:
            raise WeightSyncError(
                f"the weight update ended without {len(missing)} of {len(self._announced)} tensors, first "
                f"'{missing[0]}'"
            )
        return {name: self._whole[name] for name in self._announced}

    def _check_piece(self, piece: Piece, memory: torch.Tensor) -> None:
        name = piece.name
        if name not in self._announced:
            raise WeightSyncError(f"the weight update delivered '{name}', which it did not announce")
        size = tensor_bytes(name, self._announced[name])
        end = piece.offset + (size - piece.start if self.lasting else piece.length)
        if end > memory.numel() or piece.offset < (piece.start if self.lasting else 0) or piece.offset % ALIGNMENT:
            raise WeightSyncError(
                f"a piece of '{name}' lies at bytes {piece.offset} to {end} of a channel of {memory.numel()} bytes"
            )
        partial = self._partial.get(name)
        expected = partial.received if partial else 0
        if name in self._whole or piece.start != expected or piece.start + piece.length > size:
            raise WeightSyncError(
                f"'{name}' was sent bytes {piece.start} to {piece.start + piece.length} of {size}, expected were those "
                f"from {size if name in self._whole else expected}"
            )

    def _take(self, piece: Piece, memory: torch.Tensor) -> torch.Tensor | None:
        """The verified tensor that this piece completes, or None."""
        name, info = piece.name, self._announced[piece.name]
        size, data = tensor_bytes(name, info), memory[piece.offset : piece.offset + piece.length].cpu()
        partial = self._partial.get(name)
        if partial is None:
            if self.lasting:
                held = memory[piece.offset : piece.offset + size]
            elif piece.length == size and memory.device.type != "cpu":
                held = data
            else:
                held = torch.empty(size, dtype=torch.uint8)
            partial = self._partial[name] = _Partial(held)
        part = partial.data[piece.start : piece.start + piece.length]
        if self.lasting and part.data_ptr() != data.data_ptr() and piece.length:
            raise WeightSyncError(f"the pieces of '{name}' do not lie side by side in the channel")
        _absorb(partial, data, part, getattr(torch, info.dtype))
        return self._verified(name, partial) if partial.received == size else None

    def _verified(self, name: str, partial: _Partial) -> torch.Tensor:
        info = self._announced[name]
        found = partial.hash.hexdigest()
        if found != info.checksum:
            raise WeightSyncError(f"the tensor '{name}' arrived with checksum {found}, announced was {info.checksum}")
        if not partial.finite:
            raise WeightSyncError(f"the tensor '{name}' holds values that are not finite")
        tensor = partial.data.view(getattr(torch, info.dtype)).reshape(info.shape)
        cut = self._slices[name]
        return tensor if cut is None else tensor.narrow(cut.dim, cut.start, cut.length).clone()


def _absorb(partial: _Partial, data: torch.Tensor, part: torch.Tensor, dtype: torch.dtype) -> None:
    """Bring `data` into `part`, where it does not lie there already, and look at what is there."""
    here = part.data_ptr() == data.data_ptr()
    for start in range(0, data.numel(), CHUNK):
        chunk = part[start : start + CHUNK]
        if not here:
            chunk.copy_(data[start : start + CHUNK])
        partial.hash.update(chunk.numpy().data)
        if partial.finite and dtype.is_floating_point:
            partial.finite = _finite(chunk.view(dtype))
    partial.received += data.numel()


def _finite(values: torch.Tensor) -> bool:
    """A sum is finite only if all terms are; where it is not (it may have overflowed), every value is looked at."""
    if values.dtype.itemsize == 1:
        values = values.float()
    return bool(torch.isfinite(values.sum(dtype=torch.float32))) or bool(torch.isfinite(values).all())


def _check_slice(name: str, info: TensorInfo, cut: Slice | None) -> None:
    if cut is None:
        return
    if not 0 <= cut.dim < len(info.shape) or not 0 <= cut.start <= cut.start + cut.length <= info.shape[cut.dim]:
        raise WeightSyncError(f"this worker wants {cut} of '{name}', whose shape is {info.shape}")
