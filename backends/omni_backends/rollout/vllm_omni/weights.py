"""The engine's transformer as the target of weight updates: which of its rows hold which canonical tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, WeightManifest
from omni_portable.models.fused_layout import FusedLayout
from omni_portable.models.weights import dtype_name, tensor_checksum


@dataclass(frozen=True)
class Place:
    """Where a canonical tensor is in the engine: a parameter, or the rows of one shard of it."""

    parameter: torch.nn.Parameter
    shard: str | None

    def rows(self) -> torch.Tensor:
        """What is held there now, in the engine's layout; query, key and value have equally many rows."""
        whole = self.parameter.detach()
        if self.shard is None:
            return whole
        return whole.chunk(3)["qkv".index(self.shard)]


class TransformerWeights:
    """Canonical names -> places in the engine's transformer, and reading and writing there.

    Args:
        parameters: the engine's names (see `policy`) and parameters; every worker holds all of them.
        layout: of the family.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]], layout: FusedLayout) -> None:
        self._layout = layout
        self._places = dict(_places(parameters, layout))

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def read(self, name: str) -> torch.Tensor:
        """The tensor in canonical layout, a host copy.

        Raises:
            WeightSyncError: the engine has no such tensor.
        """
        place = self.place(name)
        rows = place.rows().to("cpu", copy=True)
        return self._to_engine(name, rows)  # a swap of halves is its own inverse

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the tensor in canonical layout; `WeightSyncError` where the engine has none."""
        return tuple(self.place(name).rows().shape)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a canonical tensor into its place; shape and dtype must be what is held."""
        place = self.place(name)
        own = place.rows()
        if tensor.shape != own.shape:
            raise WeightSyncError(
                f"the tensor '{name}' is {tuple(tensor.shape)}, the rollout engine's is {tuple(own.shape)}"
            )
        with torch.no_grad():
            own.copy_(self._to_engine(name, tensor))

    def place(self, name: str) -> Place:
        """Where a canonical tensor is; `WeightSyncError` for a name that the engine does not have."""
        if name not in self._places:
            raise WeightSyncError(f"the rollout engine 'vllm_omni' holds no tensor '{name}'")
        return self._places[name]

    def _to_engine(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        ((_, found),) = self._layout.tensors(name, tensor)
        return found


def _places(parameters: Iterable[tuple[str, torch.nn.Parameter]], layout: FusedLayout) -> Iterator[tuple[str, Place]]:
    """Parameters of the engine under canonical names; what its LoRA wrappers add to a path is left out."""
    fused = {whole for whole, _ in layout.fused.values()}
    for name, parameter in parameters:
        path = name.replace(".base_layer.", ".")
        projection = path.rpartition(".")[0].rpartition(".")[2]
        if projection not in fused:
            yield layout.canonical_name(path), Place(parameter, None)
            continue
        for whole, shard in layout.fused.values():
            if whole == projection:
                yield layout.canonical_name(path, shard), Place(parameter, shard)


class FullTarget:
    """Full weights: every parameter of the transformer is replaced (see `sync.target.WeightTarget`).

    Args:
        weights: of the transformer.
    """

    def __init__(self, weights: TransformerWeights) -> None:
        self._weights = weights

    def check(self, manifest: WeightManifest) -> None:
        check_mode(manifest, "full")
        for problem, names in (
            ("lacks", [name for name in self._weights if name not in manifest.tensors]),
            ("holds the unknown", [name for name in manifest.tensors if name not in self._weights]),
        ):
            if names:
                raise WeightSyncError(f"the weight update {problem} tensor '{names[0]}' ({len(names)} in all)")
        for name, info in manifest.tensors.items():
            own = self._weights.place(name).rows()
            if (info.shape, info.dtype) != (tuple(own.shape), dtype_name(own.dtype)):
                raise WeightSyncError(
                    f"the tensor '{name}' is {info.shape} {info.dtype}, the rollout engine's is {tuple(own.shape)} "
                    f"{dtype_name(own.dtype)}"
                )

    def slice_of(self, name: str, shape: tuple[int, ...]) -> None:
        """Every worker holds whole tensors."""

    def snapshot(self, names: Iterable[str], lora: LoraInfo | None) -> dict[str, torch.Tensor]:
        return {name: self._weights.read(name) for name in names}

    def outline(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """See `sync.target.FormerWeights`: an update replaces values alone, so that nothing else has to be kept."""
        return {}

    def apply(self, tensors: Mapping[str, torch.Tensor], lora: LoraInfo | None) -> int:
        for name, tensor in tensors.items():
            self._weights.write(name, tensor)
        for name, tensor in tensors.items():
            if not torch.equal(self._weights.read(name), tensor):
                raise WeightSyncError(f"after the weight update '{name}' does not hold what was sent")
        return 0

    def restore(self, snapshot: Any) -> None:
        for name, tensor in snapshot.items():
            self._weights.write(name, tensor)

    def checksums(self, names: Iterable[str] | None) -> dict[str, str]:
        return {name: tensor_checksum(self._weights.read(name)) for name in (self._weights if names is None else names)}


def check_mode(manifest: WeightManifest, mode: str) -> None:
    """`WeightSyncError` for an update of another mode than this engine was built for."""
    if manifest.mode != mode:
        raise WeightSyncError(
            f"the rollout engine 'vllm_omni' takes weight updates of mode '{mode}', not '{manifest.mode}'",
            remedy="build actor and rollout engine from one model.lora section",
        )
