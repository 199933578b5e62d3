"""What sender and workers tell each other beside the bytes: plain JSON values, checked when they are read.

No object is rebuilt from a peer's bytes; a message that does not fit its description is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, TensorInfo, WeightManifest

MAX_TENSORS = 1_000_000
MAX_NAME = 1024
"""Characters of a tensor's name."""
ALIGNMENT = 64
"""Bytes: every piece starts at a multiple of it, so that it can be viewed in any dtype."""
ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes per element of the dtypes that may travel."""


@dataclass(frozen=True)
class Piece:
    """Consecutive bytes of one tensor in a bucket.

    Args:
        name: canonical name.
        start: first byte of the tensor that is here.
        length: bytes.
        offset: where they lie in the channel's segment.
    """

    name: str
    start: int
    length: int
    offset: int


@dataclass(frozen=True)
class Bucket:
    """One announced piece of work for the workers: where which bytes lie."""

    sync: str
    index: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Without the gaps between pieces."""
        return sum(piece.length for piece in self.pieces)

    def encode(self) -> dict[str, Any]:
        rows = [[piece.name, piece.start, piece.length, piece.offset] for piece in self.pieces]
        return {"sync": self.sync, "index": self.index, "pieces": rows}


@dataclass(frozen=True)
class Announcement:
    """What a sync is going to bring: its own id, who sends, through which channel."""

    sync: str
    sender: int
    channel: Mapping[str, Any]
    manifest: WeightManifest

    def encode(self) -> dict[str, Any]:
        manifest = self.manifest
        tensors = {name: [list(info.shape), info.dtype, info.checksum] for name, info in manifest.tensors.items()}
        lora = None if manifest.lora is None else {**asdict(manifest.lora), "targets": list(manifest.lora.targets)}
        return {
            "sync": self.sync,
            "sender": self.sender,
            "channel": dict(self.channel),
            "mode": manifest.mode,
            "tensors": tensors,
            "lora": lora,
        }


def tensor_bytes(name: str, info: TensorInfo) -> int:
    """Size of a tensor.

    Raises:
        WeightSyncError: a dtype that does not travel.
    """
    if info.dtype not in ITEM_BYTES:
        raise WeightSyncError(
            f"the tensor '{name}' has dtype {info.dtype}, which weight updates do not carry", choices=tuple(ITEM_BYTES)
        )
    count = ITEM_BYTES[info.dtype]
    for size in info.shape:
        count *= size
    return count


def decode_announcement(message: Mapping[str, Any]) -> Announcement:
    """Inverse of :meth:`Announcement.encode`.

    Raises:
        WeightSyncError: the message has another form.
    """
    try:
        mode: Literal["full", "adapter"] = "adapter" if message["mode"] == "adapter" else "full"
        if message["mode"] != mode or len(message["tensors"]) > MAX_TENSORS:
            raise ValueError(f"mode '{message['mode']}' with {len(message['tensors'])} tensors")
        tensors = {_name(name): _info(row) for name, row in message["tensors"].items()}
        lora = None if message["lora"] is None else _lora(message["lora"])
        manifest = WeightManifest(mode=mode, tensors=tensors, lora=lora)
        found = Announcement(str(message["sync"]), int(message["sender"]), dict(message["channel"]), manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WeightSyncError(f"a weight update was announced in a form that cannot be read: {error!r}") from error
    for name, info in tensors.items():
        tensor_bytes(name, info)
    return found


def decode_bucket(message: Mapping[str, Any]) -> Bucket:
    """Inverse of :meth:`Bucket.encode`.

    Raises:
        WeightSyncError: the message has another form.
    """
    try:
        rows = [Piece(_name(row[0]), *(int(number) for number in row[1:])) for row in message["pieces"]]
        if any(min(row.start, row.length, row.offset) < 0 for row in rows):
            raise ValueError("a negative size")
        return Bucket(str(message["sync"]), int(message["index"]), tuple(rows))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise WeightSyncError(f"a bucket of weights was described in a form that cannot be read: {error!r}") from error


def _name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"a tensor's name must be text of at most {MAX_NAME} characters, not {str(name)[:80]!r}")
    return name


def _info(row: Any) -> TensorInfo:
    shape, dtype, checksum = row
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"a shape of {sizes}")
    return TensorInfo(sizes, str(dtype), str(checksum))


def _lora(row: Mapping[str, Any]) -> LoraInfo:
    targets = tuple(str(target) for target in row["targets"])
    return LoraInfo(int(row["rank"]), float(row["alpha"]), targets, int(row["expected_modules"]))
