"""AdamW on the shards: every process updates its own part, and the gradient norm is taken over all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from omni_backends.training.fsdp2.shard import copies, local
from omni_backends.training.optim import MasterOptimizer
from omni_portable.config.schema import ActorConfig


class ShardedOptimizer(MasterOptimizer):
    """Masters are this process's parts of the fp32 parameters, in the parameters' own memory.

    Args:
        parameters: canonical name -> sharded parameter.
        config: the run's `actor` section.
        device: where collectives take their tensors.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], config: ActorConfig, device: torch.device) -> None:
        super().__init__(parameters, config)
        self._device = device

    def _master(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        return torch.nn.Parameter(local(parameter))

    @property
    def separate_masters(self) -> list[torch.nn.Parameter]:
        """None: they sleep and wake with the module."""
        return []

    def gradient_norm(self) -> torch.Tensor:
        """Scalar L2 norm, fp32, over the gradients of all processes; every process must call it."""
        total = torch.zeros((), dtype=torch.float64)
        for name, parameter in self._parameters.items():
            self.masters[name].grad = None if parameter.grad is None else local(parameter.grad)
            if parameter.grad is not None:
                part = torch.linalg.vector_norm(local(parameter.grad), dtype=torch.float32)
                total += part.double().square().cpu() / copies(parameter)
        summed = total.to(self._device, torch.float32 if self._device.type != "cpu" else torch.float64)
        dist.all_reduce(summed)
        return summed.sqrt().to("cpu", torch.float32)

    def publish(self) -> None:
        """Nothing to do: the masters are the parameters' memory. Raises RuntimeError should that have changed."""
        for name, master in self.masters.items():
            if master.data_ptr() != local(self._parameters[name]).data_ptr():
                raise RuntimeError(f"the shard of '{name}' was moved; the optimizer would update memory nobody reads")
