"""Tensors whose elements another process holds: shape and dtype are here, elements come when they are computed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map_only

from omni_portable.rollout.blob import described, filled

CPU = torch.device("cpu")


class TensorSource(Protocol):
    """Tensors that another process holds together."""

    def part(self, number: int) -> memoryview:
        """Fetch the elements of one of them, as a row of bytes that nobody writes to."""
        ...


class DistantTensor(torch.Tensor):
    """Stands for one tensor on the CPU. Whatever is computed with it fetches its elements first, each time, and has an
    ordinary tensor for a result; whoever passes it on asks for `source` and `number` instead.

    Args:
        shape / dtype: of the tensor.
        source: has its elements.
        number: which of the source's tensors it is.
    """

    source: TensorSource
    number: int

    @staticmethod
    def __new__(
        cls: type[DistantTensor], shape: Sequence[int], dtype: torch.dtype, source: TensorSource, number: int
    ) -> DistantTensor:
        made: DistantTensor = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device=CPU)
        made.source, made.number = source, number
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*tree_map_only(cls, cls.here, tuple(args)), **tree_map_only(cls, cls.here, dict(kwargs or {})))

    def here(self) -> torch.Tensor:
        """The tensor itself, in memory of its own."""
        return filled(described(self), self.source.part(self.number))

    def tolist(self) -> Any:
        """Of the elements; not a computation to torch."""
        return self.here().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Of the elements, in memory of its own; not a computation to torch."""
        return self.here().numpy(force=force)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DistantTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.here()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.here().__reduce_ex__(protocol)


class Rows:
    """A `TensorSource` in this process.

    Args:
        parts: rows of bytes, one for each tensor.
    """

    def __init__(self, parts: Sequence[Any] = ()) -> None:
        self.parts = list(parts)

    def part(self, number: int) -> memoryview:
        return memoryview(self.parts[number])


def brought(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its elements in this process, for whoever needs them more than once."""
    return tensor.here() if isinstance(tensor, DistantTensor) else tensor


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as they are now, for later: a copy on the CPU, or where the source of a distant tensor has them."""
    return tensor if isinstance(tensor, DistantTensor) else tensor.detach().to("cpu", copy=True)


class Bundles:
    """Sources of the distant tensors of a packed value, in the order in which it numbers them.

    Args:
        sources: that have their numbers already.
    """

    def __init__(self, sources: Sequence[TensorSource] = ()) -> None:
        self.sources = list(sources)
        self._numbers = {id(source): number for number, source in enumerate(self.sources)}
        self._sizes: dict[tuple[int, int], int] = {}

    def place(self, tensor: DistantTensor) -> tuple[int, int]:
        """(number of its source, its own number there)."""
        source = self._numbers.setdefault(id(tensor.source), len(self.sources))
        if source == len(self.sources):
            self.sources.append(tensor.source)
        self._sizes[source, tensor.number] = tensor.nbytes
        return source, tensor.number

    @property
    def size(self) -> int:
        """Bytes of all tensors that were placed."""
        return sum(self._sizes.values())
