"""Frames between this program and the engine's process: plain values and tensors, over a pair of connected sockets.

Nothing but builtin containers, numbers, text and bytes is ever rebuilt from a frame.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping
from typing import Any

import torch

from omni_portable.models.weights import dtype_name

HEADER = struct.Struct("<Q")
MAX_FRAME = 16 << 30
"""Bytes; a longer frame is refused."""
_TENSOR = "__tensor__"


class FrameError(ValueError):
    """A frame that is too long or holds something else than plain values."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise FrameError(f"a frame holds a {module}.{name}")


def encode(value: Any) -> bytes:
    """Header and body of one frame."""
    body = pickle.dumps(_packed(value), protocol=5)
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body)} bytes, at most {MAX_FRAME} may be sent")
    return HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Of the frame that starts with `header`; `FrameError` where it is too long."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        raise FrameError(f"a frame of {length} bytes, at most {MAX_FRAME} may come")
    return int(length)


def decode(body: bytes) -> Any:
    """The value of a frame's body; tensors own their storage."""
    return _unpacked(_Plain(io.BytesIO(body)).load())


def _packed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        flat = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        return {_TENSOR: dtype_name(value.dtype), "shape": tuple(value.shape), "data": flat.numpy().tobytes()}
    if isinstance(value, Mapping):
        return {str(name): _packed(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(item) for item in value]
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    raise FrameError(f"a {type(value).__name__} is no plain value")


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            dtype = getattr(torch, value[_TENSOR])
            flat = torch.frombuffer(bytearray(value["data"]), dtype=torch.uint8) if value["data"] else torch.empty(0)
            return (
                flat.view(dtype).reshape(value["shape"]) if value["data"] else torch.empty(value["shape"], dtype=dtype)
            )
        return {name: _unpacked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    return value
