"""Sharded tensors sleep through the local part they wrap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from omni_devices.common.sleep import SleepPool
from omni_devices.cpu.device import CpuDevice
from omni_devices.cpu.sleep import DiskBacking


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    device = CpuDevice()
    for name, value in device.environment("actor").items():
        monkeypatch.setenv(name, value)
    device.collectives.init_process_group(0, 1, f"file://{tmp_path}/store", timeout_s=60)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_fully_sharded_module_sleeps_and_wakes(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    mesh = dist.init_device_mesh("cpu", (1,))
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert isinstance(net[0].weight, DTensor)
    expected = net(torch.ones(1, 8)).detach().clone()
    pool = SleepPool("actor", DiskBacking(tmp_path))
    pool.register("weights", net)
    pool.register("optimizer", optimizer)
    for _ in range(2):
        net.reshard()  # the outermost module keeps its gathered parameters after a forward
        ack = pool.sleep(1)
        assert " 0 storages" not in ack.detail
        with torch.no_grad():
            assert net[0].weight.to_local().untyped_storage().nbytes() == 0
        pool.wake()
        assert torch.equal(net(torch.ones(1, 8)), expected)
    optimizer.step()
