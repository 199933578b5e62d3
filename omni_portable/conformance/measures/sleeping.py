"""Modules and optimizers that are put to sleep, with the memory of the device read before and after."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_portable.contracts.device import Device, SleepPool
from omni_portable.models.weights import checksums

WIDTH, LAYERS = 2048, 3
"""Of the module: 48 MiB of fp32 weights, and 96 MiB of AdamW moments."""


@dataclass
class Sleeper:
    """A module and its optimizer, after one step, in a pool of the device.

    Args:
        slept_bytes: of weights and moments, what sleeping must free.
    """

    device: Device
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    pool: SleepPool
    slept_bytes: int

    @classmethod
    def build(cls, device: Device, seed: int) -> Sleeper:
        """Draw weights and make one step, so that the optimizer has moments."""
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        module = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(WIDTH)).to(device.torch_device())
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        sleeper = cls(device, module, optimizer, device.memory.pool("conformance"), 0)
        sleeper.step()
        sleeper.slept_bytes = sum(tensor.nbytes for tensor in sleeper.tensors().values())
        sleeper.pool.register("weights", module)
        sleeper.pool.register("optimizer", optimizer)
        return sleeper

    def step(self) -> None:
        """One optimizer step on fixed inputs; leaves no gradients."""
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(8, WIDTH, generator=generator).to(self.device.torch_device())
        self.module(inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and moments by name."""
        found = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        for index, state in enumerate(self.optimizer.state.values()):
            found |= {f"optimizer {index}.{n}": t for n, t in state.items() if isinstance(t, torch.Tensor)}
        return found

    def checksums(self) -> dict[str, str]:
        return checksums(self.tensors().items())

    def used(self) -> int:
        """Bytes that this process holds, as the driver or the system reports them, after free memory was returned."""
        self.device.synchronize()
        self.device.memory.trim()
        return self.device.memory.stats().used


def touched(device: Device, size: int) -> torch.Tensor:
    """`size` bytes on the device, all of them written."""
    held = torch.full((size,), 7, dtype=torch.uint8, device=device.torch_device())
    device.synchronize()
    return held
