"""LoRA through the engine's own layers: its manager wraps fused projections and binds the parts one by one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.linear import LinearBase

from omni_backends.rollout.vllm_omni.lora import SentLora
from omni_backends.rollout.vllm_omni.policy import policy_modules
from omni_backends.rollout.vllm_omni.requests import ADAPTER_ID, policy_lora_request
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.models.fused_layout import FusedLayout

_BINDABLE = (LinearBase, BaseLayerWithLoRA)


class AdapterBinding:
    """Binds by vLLM-Omni's `DiffusionLoRAManager` (see `lora.Binding`).

    Args:
        manager: of the worker.
        pipeline: ours, which hands the manager what was sent.
        layout: of the family.
        folder: of the model.
    """

    def __init__(self, manager: Any, pipeline: Any, layout: FusedLayout, folder: Path) -> None:
        self._manager, self._pipeline, self._layout = manager, pipeline, layout
        self._request = policy_lora_request(str(folder))

    def refused(self, paths: Iterable[str]) -> list[str]:
        modules = {
            name.replace(".base_layer", ""): module for name, module in policy_modules(self._pipeline.transformers)
        }
        return [path for path in paths if not isinstance(modules.get(self._fused(path)[0]), _BINDABLE)]

    def bind(self, lora: SentLora | None) -> int:
        self._manager.set_active_adapter(None)
        self._manager.remove_adapter(ADAPTER_ID)
        if lora is None:
            return 0
        modules = lora.modules()
        named: dict[str, LoRALayerWeights] = {}
        for path, (down, up) in modules.items():
            name = self._full(self._engine_path(path))
            to = {"device": "cpu", "dtype": self._manager.dtype}
            named[name] = LoRALayerWeights(
                name, lora.info.rank, lora.info.rank, down.to(**to), self._swapped(path, up).to(**to), scaling=1.0
            )
        helper = PEFTHelper(r=lora.info.rank, lora_alpha=lora.info.rank, target_modules=list(named))
        self._pipeline.lora_adapter = (LoRAModel(ADAPTER_ID, lora.info.rank, named), helper)
        try:
            self._manager.set_active_adapter(self._request, lora.scale)
        except ValueError as error:
            raise WeightSyncError(f"the engine does not bind the LoRA: {error}") from error
        return sum(sum(layer._diffusion_lora_active_slices) for layer in self._manager._lora_modules.values())

    def holds(self, lora: SentLora, path: str) -> bool:
        """Compared in the engine's dtype, with the scale in B as the engine keeps it."""
        name, shard = self._fused(path)
        layer = self._manager._lora_modules[self._full(name)]
        index = 0 if shard is None else "qkv".index(shard)
        down, up = lora.modules()[path]
        rank, dtype = lora.info.rank, self._manager.dtype
        held_down = layer.lora_a_stacked[index][0, 0, :rank, :].to("cpu")
        held_up = layer.lora_b_stacked[index][0, 0, :, :rank].to("cpu")
        active = bool(layer._diffusion_lora_active_slices[index])
        wanted = self._swapped(path, up).to(dtype) * lora.scale
        return active and torch.equal(held_down, down.to(dtype)) and torch.equal(held_up, wanted)

    def _full(self, name: str) -> str:
        """A name among the policy's -> with its component, as the manager has it."""
        transformers = self._pipeline.transformers
        return name if len(transformers) > 1 else f"{next(iter(transformers))}.{name}"

    def _fused(self, path: str) -> tuple[str, str | None]:
        """Canonical module path -> (module in the engine, shard)."""
        name, shard = self._layout.rollout_name(f"{path}.weight")
        return name.removesuffix(".weight"), shard

    def _engine_path(self, path: str) -> str:
        """Canonical module path -> what the engine calls it, the parts of fused projections by their own names."""
        ((name, _),) = self._layout.tensors(f"{path}.lora_A.weight", torch.empty(2, 1))
        return name.removesuffix(".lora_A.weight")

    def _swapped(self, path: str, up: torch.Tensor) -> torch.Tensor:
        ((_, tensor),) = self._layout.tensors(f"{path}.lora_B.weight", up)
        return tensor
