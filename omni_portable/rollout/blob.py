"""Named tensors and a text in one piece of memory, in the safetensors format, with one copy either way.

The library's own functions copy every tensor three times on the way out; groups of many megabytes wait for that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from omni_portable.contracts.errors import DataError

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Anything contiguous that has the buffer protocol."""

_METADATA, _TEXT = "__metadata__", "tree"
_LENGTH = 8
"""Bytes before the header, which say how long it is; the data begin at a multiple of it."""

NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.bool: "BOOL",
}
"""dtype -> what the format calls it."""
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def join_tensors(tensors: Mapping[str, torch.Tensor], text: str) -> bytes:
    """Every tensor copied once, from wherever it is.

    Raises:
        DataError: a dtype that cannot travel.
    """
    header: dict[str, Any] = {_METADATA: {_TEXT: text}}
    parts: list[Buffer] = []
    end = 0
    for name in sorted(tensors, key=lambda name: -tensors[name].element_size()):  # each begins at a multiple of its own
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = described(tensor) | {"data_offsets": [begin, end]}
        data: memoryview = flat_bytes(tensor).numpy().data
        parts.append(data)
    said = json.dumps(header, separators=(",", ":")).encode()
    said += b" " * (-len(said) % _LENGTH)
    return b"".join([len(said).to_bytes(_LENGTH, "little"), said, *parts])


def split_tensors(blob: Buffer) -> tuple[dict[str, torch.Tensor], str]:
    """What :func:`join_tensors` was given, in memory of its own.

    Raises:
        ValueError, KeyError, TypeError: the blob is truncated, or of another format.
    """
    whole = memoryview(blob).cast("B")
    size = int.from_bytes(whole[:_LENGTH], "little")
    if len(whole) < _LENGTH or size > len(whole) - _LENGTH:
        raise ValueError("its header is longer than the whole")
    header = json.loads(bytes(whole[_LENGTH : _LENGTH + size]))
    data = whole[_LENGTH + size :]
    text: str = header.pop(_METADATA)[_TEXT]
    places = [_place(name, said, len(data)) for name, said in header.items()]
    if sum(end - begin for *_, begin, end in places) != len(data):  # nothing twice, so that memory is bounded
        raise ValueError(f"its tensors do not fill its {len(data)} bytes of data")
    tensors = {}
    for name, dtype, shape, begin, end in places:
        tensors[name] = torch.empty(shape, dtype=dtype)
        flat_bytes(tensors[name]).numpy().data[:] = data[begin:end]
    return tensors, text


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """Its dtype and shape, as the format writes them.

    Raises:
        DataError: a dtype that cannot travel.
    """
    if tensor.dtype not in NAMES:
        raise DataError(f"tensors of {tensor.dtype} cannot travel between processes", choices=sorted(DTYPES))
    return {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape)}


def filled(said: Mapping[str, Any], data: Buffer) -> torch.Tensor:
    """A tensor as :func:`described`, with its elements from a row of bytes.

    Raises:
        ValueError, KeyError, TypeError: these do not fit.
    """
    _, dtype, shape, _, end = _place("", dict(said) | {"data_offsets": [0, len(data)]}, len(data))
    tensor = torch.empty(shape, dtype=dtype)
    flat_bytes(tensor).numpy().data[:end] = data
    return tensor


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as one row of bytes on the CPU; the memory of the tensor itself where that is contiguous there."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


def _place(name: str, said: Mapping[str, Any], limit: int) -> tuple[str, torch.dtype, list[int], int, int]:
    """(name, dtype, shape, begin, end), where these can be."""
    dtype, shape, (begin, end) = DTYPES[said["dtype"]], [int(extent) for extent in said["shape"]], said["data_offsets"]
    fits = min(shape, default=0) >= 0 and end - begin == math.prod(shape) * dtype.itemsize
    if not fits or not 0 <= begin <= end <= limit:
        raise ValueError(f"the place of its tensor '{name}' is impossible: {shape} at {begin}:{end} of {limit}")
    return name, dtype, shape, begin, end
