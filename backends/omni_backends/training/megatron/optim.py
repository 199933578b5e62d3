"""AdamW on each rank's shares; gradients are summed over the ranks that hold the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from omni_backends.training.megatron.names import split_of
from omni_backends.training.optim import MasterOptimizer
from omni_portable.config.schema import ActorConfig

PARTIAL = ("q_layernorm.weight", "k_layernorm.weight")
"""Tensors that every rank has whole, and of whose gradient it has the part of its own heads."""


class SharedOptimizer(MasterOptimizer):
    """Optimizer state is that of this rank's shares. It is not divided among data-parallel ranks.

    Args:
        parameters: Megatron name -> this rank's share.
        config: the run's `actor` section.
        tensor_group / data_group: ranks that share layers, and ranks that share samples.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], config: ActorConfig, tensor_group: Any, data_group: Any
    ) -> None:
        super().__init__(parameters, config)
        self._tensor_group, self._data_group = tensor_group, data_group

    def gradient_norm(self) -> torch.Tensor:
        """Sum the gradients of all ranks, and take the scalar L2 norm, fp32, over the whole model; once per step, and
        every rank must call it."""
        tensor_ranks, data_ranks = dist.get_world_size(self._tensor_group), dist.get_world_size(self._data_group)
        total = torch.zeros((), dtype=torch.float64)
        for name, master in self.masters.items():
            if master.grad is None:
                continue
            if data_ranks > 1:
                dist.all_reduce(master.grad, group=self._data_group)
            if tensor_ranks > 1 and name.endswith(PARTIAL):
                dist.all_reduce(master.grad, group=self._tensor_group)
            square = torch.linalg.vector_norm(master.grad, dtype=torch.float32).double().square().cpu()
            total += square / tensor_ranks if split_of(name) == "replicated" else square
        device = next(iter(self.masters.values())).device
        summed = total.to(device, torch.float64 if device.type == "cpu" else torch.float32)
        if tensor_ranks > 1:
            dist.all_reduce(summed, group=self._tensor_group)
        return summed.sqrt().to("cpu", torch.float32)
