"""How weights travel from the train engine to rollout engines: a manifest that can be proved, and a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorInfo:
    """Shape, dtype ('float32', ...) and checksum (hex XXH3-128 of the raw little-endian bytes) of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    checksum: str


@dataclass(frozen=True)
class LoraInfo:
    """What a LoRA update must bind: the scale is part of the proof, since a stale scale changes no tensor."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    expected_modules: int


@dataclass(frozen=True)
class WeightManifest:
    """What a weight stream will deliver, announced before the first tensor.

    Args:
        mode: 'full' (all trainable tensors of the transformer) or 'adapter' (LoRA matrices only).
        tensors: canonical name -> :class:`TensorInfo`.
        lora: set for mode 'adapter'.
    """

    mode: Literal["full", "adapter"]
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    lora: LoraInfo | None = None

    @property
    def bytes(self) -> int:
        sizes = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
        total = 0
        for info in self.tensors.values():
            count = sizes[info.dtype]
            for dim in info.shape:
                count *= dim
            total += count
        return total


class WeightStream(Protocol):
    """Named tensors in the model's canonical layout (diffusers / transformers / peft names), delivered once."""

    manifest: WeightManifest

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...


@runtime_checkable
class PiecewiseStream(Protocol):
    """A `WeightStream` of which a few tensors are made at a time. It is read either way, once."""

    manifest: WeightManifest

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...

    def pieces(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """The same tensors in the same order. A piece may be let go of before the next one is asked for."""
        ...
