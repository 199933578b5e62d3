"""A LoRA in vLLM's slots: put there from memory, counted and read back where its kernels read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from omni_backends.rollout.vllm.inventory import Inventory
from omni_backends.rollout.vllm.naming import ADAPTER_ID
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo
from omni_portable.models.weights import tensor_checksum

SHARDS = {"q": 0, "k": 1, "v": 2, "gate": 0, "up": 1}
"""Shard of a fused projection -> its place in vLLM's stacked matrices."""


@dataclass(frozen=True)
class HeldLora:
    """What was put into the slot, on the host."""

    tensors: Mapping[str, torch.Tensor]
    info: LoraInfo


class LoraSlot:
    """The one adapter of a worker.

    Args:
        worker_manager: `model_runner.lora_manager`.
        inventory: names of the base model's tensors.
    """

    def __init__(self, worker_manager: Any, inventory: Inventory) -> None:
        self._workers, self._inventory = worker_manager, inventory
        self._manager: Any = worker_manager._adapter_manager
        self.held: HeldLora | None = None

    def names(self) -> list[str]:
        """Canonical names of the matrices that are held."""
        return [] if self.held is None else list(self.held.tensors)

    def replace(self, tensors: Mapping[str, torch.Tensor], info: LoraInfo) -> int:
        """Put these matrices where the former ones were.

        Returns:
            Modules whose slot holds what was sent, read from the slot.

        Raises:
            WeightSyncError: a module that vLLM has no slot for.
        """
        for name in tensors:
            self._layer(name)
        helper = PEFTHelper(r=info.rank, lora_alpha=info.alpha, target_modules=list(info.targets))
        mapper = getattr(self._manager.model, "hf_to_vllm_mapper", None)
        adapter = LoRAModel.from_lora_tensors(
            ADAPTER_ID,
            # vLLM multiplies the scale into its matrices in place
            {f"base_model.model.{name}": tensor.clone() for name, tensor in tensors.items()},
            helper,
            device="cpu",
            dtype=self._workers.lora_config.lora_dtype,
            model_vocab_size=self._workers.vocab_size,
            weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
        )
        self._manager.remove_adapter(ADAPTER_ID)
        self._manager.add_adapter(adapter)
        self._manager.activate_adapter(ADAPTER_ID)
        self.held = HeldLora({name: tensor.clone() for name, tensor in tensors.items()}, info)
        return sum(self._applies(name) for name in tensors if ".lora_A." in name)

    def put_back(self, held: HeldLora | None) -> None:
        """Hold what was held before."""
        if held is not None:
            self.replace(held.tensors, held.info)
            return
        self._manager.remove_adapter(ADAPTER_ID)
        self.held = None

    def checksums(self, names: Iterable[str]) -> dict[str, str]:
        """Of what the slot holds: a matrix that is bit-equal to what was sent, or to this worker's share of it, has its
        checksum.

        vLLM keeps matrices in its own dtype with the scale multiplied into B, so that what was sent is brought there
        the same way to be compared; a matrix that differs has the checksum of what is in the slot.
        """
        found: dict[str, str] = {}
        for name in names:
            if self.held is None or name not in self.held.tensors:
                raise WeightSyncError(f"the rollout engine 'vllm' holds no LoRA matrix '{name}'")
            slot, sent = self._read(name), self.held.tensors[name]
            found[name] = tensor_checksum(sent if torch.equal(slot, self._expected(name)) else slot)
        return found

    def _applies(self, name: str) -> bool:
        other = name.replace(".lora_A.", ".lora_B.")
        return all(torch.equal(self._read(each), self._expected(each)) for each in (name, other))

    def _expected(self, name: str) -> torch.Tensor:
        assert self.held is not None
        matrix = self._share(name).to(self._workers.lora_config.lora_dtype)
        return matrix * (self.held.info.alpha / self.held.info.rank) if ".lora_B." in name else matrix

    def _share(self, name: str) -> torch.Tensor:
        """What of a matrix this worker applies: vLLM's layer cuts it, where workers share the layer."""
        layer, place = self._layer(name)
        assert self.held is not None
        matrix = self.held.tensors[name]
        if layer.tp_size == 1:
            return matrix
        cut = layer.slice_lora_a if ".lora_A." in name else layer.slice_lora_b
        if layer.n_slices == 1:
            return torch.as_tensor(cut(matrix))
        shards: list[torch.Tensor | None] = [None] * layer.n_slices
        shards[place] = matrix
        return torch.as_tensor(cut(shards)[place])

    def _read(self, name: str) -> torch.Tensor:
        layer, place = self._layer(name)
        rows, columns = self._share(name).shape
        stacked = layer.lora_a_stacked if ".lora_A." in name else layer.lora_b_stacked
        slot = self._manager.lora_index_to_id.index(ADAPTER_ID)
        matrix: torch.Tensor = stacked[place][slot, 0, :rows, :columns]
        return matrix.cpu()

    def _layer(self, name: str) -> tuple[Any, int]:
        """The layer that a matrix belongs to, and which of its slices."""
        path = name.partition(".lora_")[0]
        target, shard = self._inventory.runtime_name(f"{path}.weight")
        layer: Any = self._manager.modules.get(target.removesuffix(".weight"))
        if not isinstance(layer, BaseLinearLayerWithLoRA):
            raise WeightSyncError(
                f"vLLM applies no LoRA in '{target.removesuffix('.weight')}' ('{path}')",
                remedy="choose model.lora.targets among attention and feed-forward projections of the language model",
            )
        return layer, SHARDS[shard] if shard else 0
