"""One vLLM worker's model as a target of weight syncs: full weights by vLLM's own reload, or a LoRA in its slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_backends.rollout.vllm.adapter import LoraSlot
from omni_backends.rollout.vllm.inventory import Inventory
from omni_backends.rollout.vllm.layers import ModelState, put_back, read_tensors, remember
from omni_backends.rollout.vllm.packed import cpu_experts, is_padded
from omni_backends.rollout.vllm.ranks import Ranks, tensor_ranks
from omni_backends.rollout.vllm.transfer import StagedTransferEngine
from omni_backends.sync.target import Slice
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, WeightManifest
from omni_portable.models.weights import tensor_checksum

_SAME_SIZE = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""Integers to look at a dtype's bits with."""


@dataclass
class VllmTarget:
    """See `sync.target.WeightTarget`.

    Args:
        worker: vLLM's.
        inventory: what full updates replace.
        lora: what the engine was built with; None for full weights.
        moe_update: see `VllmOptions`.
    """

    worker: Any
    inventory: Inventory
    lora: LoraInfo | None
    moe_update: str
    _slot: LoraSlot | None = None
    _ranks: Ranks | None = None
    _negative_zeros: dict[str, torch.Tensor] = field(default_factory=dict)
    _updating: bool = False

    @property
    def model(self) -> torch.nn.Module:
        """As vLLM's runner has it."""
        model: torch.nn.Module = self.worker.model_runner.get_model()
        return model

    @property
    def slot(self) -> LoraSlot:
        """Where the adapter goes."""
        if self._slot is None:
            self._slot = LoraSlot(self.worker.model_runner.lora_manager, self.inventory)
        return self._slot

    @property
    def ranks(self) -> Ranks:
        """The workers that hold parts of the model."""
        if self._ranks is None:
            self._ranks = tensor_ranks()
        return self._ranks

    def check(self, manifest: WeightManifest) -> None:
        mode = "full" if self.lora is None else "adapter"
        if manifest.mode != mode:
            raise WeightSyncError(
                f"the rollout engine 'vllm' takes weight updates of mode '{mode}', not '{manifest.mode}'",
                remedy="build actor and rollout engine from one model.lora section",
            )
        self.inventory.check(manifest.tensors)
        if self.lora is not None:
            self._check_lora(manifest.lora)
        else:
            self._check_experts()

    def slice_of(self, name: str, shape: tuple[int, ...]) -> Slice | None:
        """vLLM's loaders cut tensors themselves."""
        return None

    def snapshot(self, names: Iterable[str], lora: LoraInfo | None) -> Any:
        if lora is not None:
            return self.slot.held
        return (remember(self.model, self.inventory, names), dict(self._negative_zeros))

    def outline(self, names: Iterable[str]) -> Any:
        """See `sync.target.FormerWeights`: layers and their parameters, without what these hold."""
        return (remember(self.model, self.inventory, ()), dict(self._negative_zeros))

    def apply(self, tensors: Mapping[str, torch.Tensor], lora: LoraInfo | None) -> int:
        if lora is not None:
            return self.slot.replace(tensors, lora)
        engine: StagedTransferEngine = self.worker.weight_transfer_engine
        engine.stage(tensors)
        self.worker.start_weight_update()
        self._updating = True
        self.worker.update_weights({"tensors": len(tensors)})
        self.worker.finish_weight_update()
        self._updating = False
        self._negative_zeros = {name: zeros for name, t in tensors.items() if len(zeros := _negative_zeros(t))}
        return 0

    def restore(self, snapshot: Any) -> None:
        if self.lora is not None:
            self.slot.put_back(snapshot)
            return
        state, self._negative_zeros = snapshot
        self._end_session()
        assert isinstance(state, ModelState)
        put_back(state)

    def checksums(self, names: Iterable[str] | None) -> Mapping[str, str]:
        """Read back through the kernels. A zero's sign, which no product shows, is taken from what was loaded."""
        wanted = list(names) if names is not None else None
        if self.lora is not None:
            adapter = [name for name in (wanted if wanted is not None else self.slot.names()) if ".lora_" in name]
            rest = [name for name in wanted or [] if ".lora_" not in name]
            return {**self.slot.checksums(adapter), **self._base(rest)}
        return self._base(list(self.inventory.base) if wanted is None else wanted)

    def _base(self, names: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, tensor in read_tensors(self.model, self.inventory, names, self.ranks):
            zeros, held = self._negative_zeros.get(name), tensor
            if zeros is not None:
                flat = tensor.clone().flatten()
                flat[zeros[flat[zeros] == 0]] = -0.0
                held = flat.view(tensor.shape)
            found[name] = tensor_checksum(held)
        return {name: found[name] for name in names}

    def _check_lora(self, sent: LoraInfo | None) -> None:
        mine = self.lora
        assert mine is not None
        if sent is None or (sent.rank, sent.alpha, sent.expected_modules, set(sent.targets)) != (
            mine.rank,
            mine.alpha,
            mine.expected_modules,
            set(mine.targets),
        ):
            raise WeightSyncError(f"the weight update is for {sent}, the rollout engine 'vllm' holds {mine}")

    def _check_experts(self) -> None:
        for name, module, experts in cpu_experts(self.model):
            if self.moe_update == "refuse" or is_padded(module, experts):
                reason = "are padded" if is_padded(module, experts) else "may not be updated (moe_update=refuse)"
                raise WeightSyncError(
                    f"the experts of layer '{name}' {reason} on this CPU, and cannot be reloaded in place",
                    remedy="set rollout.options.moe_update=rebuild, or train a LoRA (model.lora.rank)",
                )

    def _end_session(self) -> None:
        """Let vLLM's worker out of an update that failed after its last tensor."""
        self.worker.weight_transfer_engine.abandon()
        if self._updating:
            self._updating = False
            if self.worker._weight_update_active:
                self.worker.finish_weight_update()


def _negative_zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Places (in the flat tensor) of zeros with a sign, whose bits are the least integer of that size: usually none."""
    flat = tensor.flatten()
    if flat.dtype not in _SAME_SIZE:
        return torch.empty(0, dtype=torch.int64)
    whole = _SAME_SIZE[flat.dtype]
    return (flat.view(whole) == torch.iinfo(whole).min).nonzero().flatten()
