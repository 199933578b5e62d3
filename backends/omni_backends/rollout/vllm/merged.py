"""A LoRA for an engine that cannot apply one: multiplied into the base weights, which are then updated as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from omni_backends.rollout.vllm.inventory import Inventory
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, WeightStream
from omni_portable.models.weights import NamedTensorStream, make_stream, receive, tensor_checksum

ReadBack = Callable[[Iterable[str]], dict[str, str]]


@dataclass
class MergedLora:
    """Holds the base model on the host, and which adapter the engine's weights contain.

    Args:
        inventory: of the base model, with the adapter's matrices.
        info: of the LoRA.
        base: canonical name -> tensor of the base model.
        adapter: LoRA matrices to begin with.
    """

    inventory: Inventory
    info: LoraInfo
    base: Mapping[str, torch.Tensor]
    adapter: Mapping[str, torch.Tensor]
    _next: dict[str, torch.Tensor] = field(default_factory=dict)
    _former: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def begin(self) -> NamedTensorStream:
        """Full weights with the adapter in them."""
        return make_stream("full", {**self.base, **self._merged(self.adapter)}.items(), None)

    def full(self, stream: WeightStream) -> NamedTensorStream:
        """Full weights with the adapter of a stream in them; :meth:`accept` follows where they have arrived.

        Raises:
            WeightSyncError: the stream is for another LoRA, does not fit its manifest, or holds a value that is not
                finite.
        """
        if stream.manifest.lora != self.info:
            raise WeightSyncError(
                f"the weight update is for {stream.manifest.lora}, the rollout engine 'vllm' holds {self.info}"
            )
        self.inventory.check(stream.manifest.tensors)
        self._next = {name: tensor.detach().to("cpu", copy=True) for name, tensor in receive(stream).items()}
        for name, tensor in self._next.items():
            if not bool(torch.isfinite(tensor).all()):
                raise WeightSyncError(f"the tensor '{name}' holds values that are not finite")
        return make_stream("full", {**self.base, **self._merged(self._next)}.items(), None)

    def accept(self) -> None:
        """The engine holds what :meth:`full` gave."""
        self._former, self.adapter = self.adapter, self._next

    def go_back(self) -> None:
        """The engine holds what it held before the last :meth:`accept`."""
        self.adapter = self._former

    def checksums(self, names: Iterable[str] | None, read_back: ReadBack) -> dict[str, str]:
        """Of LoRA matrices, or of base tensors as the engine holds them.

        A matrix has its own checksum where the engine's weight is bit-equal to base and adapter together; otherwise the
        checksum of that weight.
        """
        wanted = list(self.adapter) if names is None else list(names)
        unknown = [name for name in wanted if name not in self.adapter and name not in self.base]
        if unknown:
            raise WeightSyncError(f"the rollout engine 'vllm' holds no tensor '{unknown[0]}' ({len(unknown)} unknown)")
        held = read_back(sorted({_target(name) for name in wanted}))
        expected = self._merged(self.adapter)
        found: dict[str, str] = {}
        for name in wanted:
            target = _target(name)
            found[name] = held[target]
            if name in self.adapter and held[target] == tensor_checksum(expected[target]):
                found[name] = tensor_checksum(self.adapter[name])
        return found

    def _merged(self, adapter: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Base tensors that the adapter changes: W + (alpha / rank) B A, in fp32, rounded once."""
        scale = self.info.alpha / self.info.rank
        merged: dict[str, torch.Tensor] = {}
        for name, down in adapter.items():
            if ".lora_A." in name:
                base, up = self.base[_target(name)], adapter[name.replace(".lora_A.", ".lora_B.")]
                merged[_target(name)] = (base.float() + scale * (up.float() @ down.float())).to(base.dtype)
        return merged


def _target(name: str) -> str:
    """The base tensor that a LoRA matrix changes; a base tensor's own name."""
    path, lora, _ = name.partition(".lora_")
    return f"{path}.weight" if lora else name
