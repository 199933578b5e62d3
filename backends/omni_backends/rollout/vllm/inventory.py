"""What weight updates replace; read on both sides of the process boundary, without vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import TensorInfo
from omni_portable.models.autoregressive.layout import rollout_name


@dataclass(frozen=True)
class TensorShape:
    """Shape and dtype name of a tensor."""

    shape: tuple[int, ...]
    dtype: str


Shapes = Mapping[str, TensorShape]


@dataclass(frozen=True)
class Inventory:
    """What the policy consists of, by canonical name.

    Args:
        base: every trainable tensor of the base model.
        prefixes: first parts of names that vLLM spells otherwise (`LanguageAdapter.rollout_prefixes`).
        adapter: LoRA matrices; empty for full weights.
    """

    base: Shapes
    prefixes: Mapping[str, str]
    adapter: Shapes = field(default_factory=dict)

    @property
    def updated(self) -> Shapes:
        """What an update brings."""
        return self.adapter or self.base

    def runtime_name(self, name: str) -> tuple[str, str | None]:
        """Name of a base tensor in vLLM, and which shard of it."""
        return rollout_name(name, self.prefixes)

    def adapted_modules(self) -> list[str]:
        """vLLM's modules that LoRA matrices belong to."""
        paths = {name.partition(".lora_")[0] for name in self.adapter}
        return sorted({self.runtime_name(f"{path}.weight")[0].removesuffix(".weight") for path in paths})

    def check(self, sent: Mapping[str, TensorInfo]) -> None:
        """Refuse an update of other tensors.

        Raises:
            WeightSyncError: names the first that is missing, unknown, or of another shape or dtype.
        """
        own = self.updated
        for problem, names in (
            ("lacks", [name for name in own if name not in sent]),
            ("holds the unknown", [name for name in sent if name not in own]),
        ):
            if names:
                raise WeightSyncError(f"the weight update {problem} tensor '{names[0]}' ({len(names)} in all)")
        for name, info in sent.items():
            if (info.shape, info.dtype) != (own[name].shape, own[name].dtype):
                raise WeightSyncError(
                    f"the weight update brings '{name}' as {info.shape} {info.dtype}, the engine's is "
                    f"{own[name].shape} {own[name].dtype}"
                )

    def encode(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"base": _encode(self.base), "prefixes": dict(self.prefixes), "adapter": _encode(self.adapter)}


def decode_inventory(message: Mapping[str, Any]) -> Inventory:
    """Inverse of :meth:`Inventory.encode`."""
    prefixes = {str(own): str(theirs) for own, theirs in message["prefixes"].items()}
    return Inventory(_decode(message["base"]), prefixes, _decode(message["adapter"]))


def _encode(shapes: Shapes) -> dict[str, Any]:
    return {name: [list(each.shape), each.dtype] for name, each in shapes.items()}


def _decode(rows: Mapping[str, Any]) -> dict[str, TensorShape]:
    return {str(name): TensorShape(tuple(int(size) for size in row[0]), str(row[1])) for name, row in rows.items()}
