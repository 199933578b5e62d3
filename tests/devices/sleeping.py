"""A module of many kinds of tensors, and pools that put it to sleep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from omni_devices.common.sleep import SleepPool
from omni_devices.cpu import hostcopy
from omni_devices.cpu.sleep import DiskBacking

MIB = 1 << 20
filesystem = hostcopy.filesystem
"""Of a folder; what tests put in its place is not asked."""


class Net(nn.Module):
    """Tied, viewed, buffered, of several dtypes; about 5 x `width`^2 x 4 bytes of parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.tied = nn.Linear(width, width, bias=False)
        self.tied.weight = self.first.weight
        self.low = nn.Parameter(torch.randn(width, width).to(torch.bfloat16))
        self.register_buffer("table", torch.randn(width, width))
        self.register_buffer("view", self.table.T[:, 1:], persistent=False)
        self.register_buffer("mask", torch.rand(width) > 0.5)
        self.register_buffer("empty", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.second(self.first(x))) + x @ self.low.float() + (x @ self.table) * self.mask


def trained(width: int) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net(width)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.randn(2, width)).square().sum().backward()
    optimizer.step()
    return net, optimizer


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def everything(net: Net, optimizer: torch.optim.Optimizer | None) -> dict[str, torch.Tensor]:
    tensors = dict(net.named_parameters(remove_duplicate=False)) | dict(net.named_buffers(remove_duplicate=False))
    tensors |= {f"{name}.grad": p.grad for name, p in net.named_parameters() if p.grad is not None}
    if optimizer:
        for position, state in enumerate(optimizer.state.values()):
            tensors |= {f"{position}.{key}": value for key, value in state.items()}
    return tensors


def pool_of(tmp_path: Path, net: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> SleepPool:
    """A pool whose copies go to a folder, which must be on a disk."""
    if filesystem(tmp_path) in hostcopy.IN_MEMORY:
        pytest.fail(f"{tmp_path} is in memory; run with --basetemp on a disk")
    pool = SleepPool("actor", DiskBacking(tmp_path))
    pool.register("weights", net)
    if optimizer:
        pool.register("optimizer", optimizer)
    return pool
