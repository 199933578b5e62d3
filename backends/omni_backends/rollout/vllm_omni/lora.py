"""LoRA updates in vLLM-Omni: as an adapter of the engine's LoRA layers, or merged into the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from omni_backends.rollout.vllm_omni.weights import TransformerWeights, check_mode
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, WeightManifest
from omni_portable.models.weights import tensor_checksum

DOWN, UP = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True)
class SentLora:
    """The LoRA that the engine applies: canonical tensors as sent, and what they are for."""

    tensors: Mapping[str, torch.Tensor]
    info: LoraInfo

    @property
    def scale(self) -> float:
        return self.info.alpha / self.info.rank

    def modules(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Canonical module path -> (A, B)."""
        paths = [name.removesuffix(DOWN) for name in self.tensors if name.endswith(DOWN)]
        return {path: (self.tensors[path + DOWN], self.tensors[path + UP]) for path in paths}


class Binding(Protocol):
    """One way to make the engine apply a LoRA."""

    def bind(self, lora: SentLora | None) -> int:
        """Apply this LoRA in place of the former one, or none; returns the number of modules that apply it."""
        ...

    def holds(self, lora: SentLora, path: str) -> bool:
        """Whether the engine's layers hold, bit for bit, what this LoRA says for one module."""
        ...

    def refused(self, paths: Iterable[str]) -> list[str]:
        """Of these modules, the ones that cannot be bound this way."""
        ...


@dataclass(frozen=True)
class Expected:
    """The LoRA that the recipe configures."""

    rank: int
    alpha: float
    mode: str
    """'adapter', 'merged' or 'auto' (the former where every module can be bound)."""
    dtype: str = "float32"
    """Of the engine; a LoRA comes in it or, as actors keep it, in float32."""


class LoraTarget:
    """LoRA matrices alone travel (see `sync.target.WeightTarget`).

    Args:
        adapter / merged: the two ways to apply them; which one is decided by the first update.
        expected: what the recipe configures.
        weights: of the transformer, whose layers say which sizes fit.
    """

    def __init__(self, adapter: Binding, merged: Binding, expected: Expected, weights: TransformerWeights) -> None:
        self._weights = weights
        self._ways = {"adapter": adapter, "merged": merged}
        self._expected = expected
        self._binding: Binding | None = None
        self._held: SentLora | None = None
        self.way = ""
        """'adapter' or 'merged'; empty before the first update."""

    def check(self, manifest: WeightManifest) -> None:
        check_mode(manifest, "adapter")
        info, expected = manifest.lora, self._expected
        if info is None or (info.rank, info.alpha) != (expected.rank, expected.alpha):
            raise WeightSyncError(
                f"the weight update is for {info}, the rollout engine 'vllm_omni' was configured with rank "
                f"{expected.rank} and alpha {expected.alpha:g}"
            )
        downs = {name.removesuffix(DOWN): tensor for name, tensor in manifest.tensors.items() if name.endswith(DOWN)}
        ups = {name.removesuffix(UP): tensor for name, tensor in manifest.tensors.items() if name.endswith(UP)}
        if not downs or len(downs) != info.expected_modules:
            raise WeightSyncError(
                f"the weight update binds {len(downs)} LoRA modules, expected {info.expected_modules}"
            )
        if downs.keys() != ups.keys() or len(downs) + len(ups) != len(manifest.tensors):
            raise WeightSyncError("the weight update holds tensors that are no pairs of LoRA matrices")
        strange = [name for name, tensor in manifest.tensors.items() if tensor.dtype not in (expected.dtype, "float32")]
        if strange:
            raise WeightSyncError(
                f"the tensor '{strange[0]}' is {manifest.tensors[strange[0]].dtype}, a LoRA for the rollout engine "
                f"'vllm_omni' is {' or '.join(dict.fromkeys((expected.dtype, 'float32')))} ({len(strange)} in all)"
            )
        for path, down in downs.items():
            if down.shape[0] != info.rank or ups[path].shape[1] != info.rank:
                raise WeightSyncError(f"the LoRA at '{path}' has another rank than {info.rank}")
        if self._binding is None:
            self._choose(list(downs))
        for path, down in downs.items():
            own, sent = self._weights.shape(f"{path}.weight"), (ups[path].shape[0], down.shape[1])
            if sent != own:
                raise WeightSyncError(f"the LoRA at '{path}' is for a weight of {sent}, the rollout engine's is {own}")

    def slice_of(self, name: str, shape: tuple[int, ...]) -> None:
        """Every worker holds whole tensors."""

    def snapshot(self, names: Iterable[str], lora: LoraInfo | None) -> SentLora | None:
        return self._held

    def apply(self, tensors: Mapping[str, torch.Tensor], lora: LoraInfo | None) -> int:
        assert lora is not None
        sent = SentLora(dict(tensors), lora)
        bound = self._bound.bind(sent)
        self._held = sent
        for path in sent.modules():
            if not self._bound.holds(sent, path):
                raise WeightSyncError(f"after the weight update the layer at '{path}' does not hold what was sent")
        return bound

    def restore(self, snapshot: Any) -> None:
        self._bound.bind(snapshot)
        self._held = snapshot

    def checksums(self, names: Iterable[str] | None) -> dict[str, str]:
        """Of the matrices as sent, where the layers still hold what follows from them; anything else raises."""
        held = self._held
        if held is None:
            raise WeightSyncError("the rollout engine 'vllm_omni' was sent no LoRA yet")
        wanted = list(held.tensors) if names is None else list(names)
        unknown = [name for name in wanted if name not in held.tensors]
        if unknown:
            raise WeightSyncError(
                f"the rollout engine 'vllm_omni' holds no tensors {unknown[:3]} ({len(unknown)} in all)"
            )
        lost = [path for path in held.modules() if not self._bound.holds(held, path)]
        if lost:
            raise WeightSyncError(
                f"the layer at '{lost[0]}' no longer holds the LoRA that was sent ({len(lost)} in all)"
            )
        return {name: tensor_checksum(held.tensors[name]) for name in wanted}

    @property
    def _bound(self) -> Binding:
        if self._binding is None:
            raise WeightSyncError("a LoRA is applied that was not checked")
        return self._binding

    def _choose(self, paths: list[str]) -> None:
        mode = self._expected.mode
        refused = self._ways["adapter"].refused(paths) if mode != "merged" else []
        if refused and mode == "adapter":
            raise WeightSyncError(
                f"rollout.options.lora=adapter: no LoRA can be bound to '{refused[0]}' ({len(refused)} in all)",
                remedy="set rollout.options.lora=merged",
            )
        self.way = "merged" if refused or mode == "merged" else "adapter"
        self._binding = self._ways[self.way]
        if unknown := self._binding.refused(paths):
            raise WeightSyncError(f"the rollout engine 'vllm_omni' has no layer '{unknown[0]}' ({len(unknown)} in all)")


class MergedBinding:
    """W + (alpha / rank) B A in place of W, from a host copy of the W of every target.

    Args:
        weights: of the transformer, as loaded.
    """

    def __init__(self, weights: TransformerWeights) -> None:
        self._weights = weights
        self._base: dict[str, torch.Tensor] = {}

    def refused(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if f"{path}.weight" not in self._weights]

    def bind(self, lora: SentLora | None) -> int:
        for path, base in self._base.items():
            self._weights.write(f"{path}.weight", base)
        if lora is None:
            return 0
        for path in lora.modules():
            if path not in self._base:
                self._base[path] = self._weights.read(f"{path}.weight")
            self._weights.write(f"{path}.weight", self._merged(lora, path))
        return len(lora.modules())

    def holds(self, lora: SentLora, path: str) -> bool:
        return torch.equal(self._weights.read(f"{path}.weight"), self._merged(lora, path))

    def _merged(self, lora: SentLora, path: str) -> torch.Tensor:
        down, up = lora.modules()[path]
        base = self._base[path]
        return (base.float() + lora.scale * (up.float() @ down.float())).to(base.dtype)
