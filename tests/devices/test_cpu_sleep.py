"""Sleep and wake on the CPU: memory really goes away, bits come back, identity stays, use while asleep is an error."""

from __future__ import annotations

import copy
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from omni_devices.cpu import memory
from omni_devices.cpu.memory import HostMemory
from omni_portable.contracts.device import SleepPool
from omni_portable.contracts.errors import DeviceError, LifecycleError
from tests.devices.sleeping import MIB, everything, pool_of, raw, trained


@pytest.mark.parametrize("level", [1, 2])
def test_memory_leaves_the_process_and_comes_back(tmp_path: Path, level: int) -> None:
    net, optimizer = trained(1280)  # 6 MiB a matrix
    pool = pool_of(tmp_path, net, optimizer)
    assert isinstance(pool, SleepPool)
    kept = {name: raw(tensor) for name, tensor in everything(net, optimizer).items()} if level == 1 else {}
    size = sum(slot.nbytes for slots in pool._collect(["weights", "optimizer"]).values() for slot in slots)
    assert size > 64 * MIB
    before = HostMemory().stats().used
    down = pool.sleep(level)
    asleep = HostMemory().stats().used
    up = pool.wake()
    assert down.bytes >= 0.95 * size
    assert before - asleep >= 0.9 * size
    assert up.bytes >= 0.95 * size
    assert HostMemory().stats().used - asleep >= 0.9 * size
    assert all(raw(tensor) == kept[name] for name, tensor in everything(net, optimizer).items() if level == 1)


def test_bits_and_identity_survive_many_cycles(tmp_path: Path) -> None:
    net, optimizer = trained(64)
    pool = pool_of(tmp_path, net, optimizer)
    tensors = everything(net, optimizer)
    ids, kept = {name: id(t) for name, t in tensors.items()}, {name: raw(t) for name, t in tensors.items()}
    probe = torch.randn(3, 64)
    expected = net(probe).detach()
    for _ in range(4):
        pool.sleep(1)
        assert all(t.untyped_storage().nbytes() == 0 for t in tensors.values() if t.numel())
        pool.wake()
    now = everything(net, optimizer)
    assert {name: id(t) for name, t in now.items()} == ids
    assert {name: raw(t) for name, t in now.items()} == kept
    assert torch.equal(net(probe), expected)
    assert net.tied.weight is net.first.weight
    net.table[1, 0] = 42.0
    assert net.view[0, 0] == 42.0  # still a view


def test_training_goes_on_as_without_sleep(tmp_path: Path) -> None:
    results = []
    for sleeps in (False, True):
        net, optimizer = trained(32)
        pool = pool_of(tmp_path, net, optimizer)
        for step in range(3):
            if sleeps:
                pool.sleep(1)
                pool.wake()
            optimizer.zero_grad()
            net(torch.full((2, 32), float(step + 1))).square().sum().backward()
            optimizer.step()
        results.append({name: raw(t) for name, t in everything(net, optimizer).items()})
    assert results[0] == results[1]


def test_level_2_keeps_buffers_and_poisons_the_rest(tmp_path: Path) -> None:
    net, optimizer = trained(16)
    pool = pool_of(tmp_path, net, optimizer)
    buffers = {name: raw(b) for name, b in net.named_buffers()}
    pool.sleep(2)
    ack = pool.wake()
    assert {name: raw(b) for name, b in net.named_buffers()} == buffers
    for name, tensor in everything(net, optimizer).items():
        if name not in buffers:
            assert torch.isnan(tensor.float()).all(), name
    assert "without their contents" in ack.detail


def test_staged_tags(tmp_path: Path) -> None:
    net, optimizer = trained(32)
    pool = pool_of(tmp_path, net, optimizer)
    probe = torch.randn(1, 32)
    expected = net(probe)
    pool.sleep(1, ["optimizer"])
    assert torch.equal(net(probe), expected)
    pool.sleep(1)  # what is awake: the weights
    pool.wake(["weights"])
    assert torch.equal(net(probe), expected)
    with pytest.raises(LifecycleError, match=r"AdamW.step\(\) was called while 'optimizer' of pool 'actor' is asleep"):
        optimizer.step()
    pool.wake()
    optimizer.step()


def test_a_storage_shared_by_tags_belongs_to_the_first(tmp_path: Path) -> None:
    net = nn.Linear(8, 8)
    other = nn.Module()
    other.register_parameter("alias", nn.Parameter(net.weight.detach()))
    pool = pool_of(tmp_path, net)
    pool.register("kv_cache", other)
    expected = raw(net.weight)
    pool.sleep(1, ["kv_cache"])
    assert raw(net.weight) == expected
    pool.sleep(2, ["weights"])
    pool.wake(["kv_cache"])
    pool.wake()
    assert torch.isnan(net.weight).all()
    assert torch.isnan(other.alias).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda net, optimizer: net(torch.ones(1, 16)),
        lambda net, optimizer: net.first(torch.ones(1, 16)),
        lambda net, optimizer: net.state_dict(),
        lambda net, optimizer: net.load_state_dict({}, strict=False),
        lambda net, optimizer: optimizer.step(),
        lambda net, optimizer: optimizer.state_dict(),
        lambda net, optimizer: optimizer.load_state_dict({"state": {}, "param_groups": []}),
        lambda net, optimizer: net.double(),
        lambda net, optimizer: net.second.to("meta"),
        lambda net, optimizer: net.share_memory(),
        lambda net, optimizer: copy.deepcopy(net),
        lambda net, optimizer: copy.deepcopy([net.second]),
        lambda net, optimizer: torch.save(net, io.BytesIO()),
        lambda net, optimizer: copy.deepcopy(optimizer),
        lambda net, optimizer: pickle.dumps(optimizer),
    ],
    ids=[
        *("forward", "part", "state_dict", "load", "step", "optimizer state_dict", "optimizer load"),
        *("double", "to", "share_memory", "copy", "copy of a part", "save", "optimizer copy", "optimizer pickle"),
    ],
)
def test_use_while_asleep_is_an_error_and_none_after(tmp_path: Path, call: object) -> None:
    net, optimizer = trained(16)
    pool = pool_of(tmp_path, net, optimizer)
    pool.sleep(1)
    with pytest.raises(LifecycleError, match="asleep"):
        call(net, optimizer)  # type: ignore[operator]
    pool.wake()
    net(torch.ones(1, 16))
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    net.load_state_dict(net.state_dict())
    assert not any(part._forward_pre_hooks for part in net.modules())
    assert torch.equal(copy.deepcopy(net).float().second.weight, net.second.weight)
    assert not {"_apply", "__deepcopy__", "__reduce_ex__"} & set().union(*(vars(part) for part in net.modules()))


def test_guards_of_one_module_go_one_by_one_and_give_back_what_they_replaced(tmp_path: Path) -> None:
    net, own = nn.Linear(8, 8), []
    net._apply = own.append  # type: ignore[assignment, method-assign]
    pool = pool_of(tmp_path, net)
    pool.register("kv_cache", nn.Sequential(net))
    pool.sleep(1, ["weights"])
    pool.sleep(1, ["kv_cache"])
    pool.wake(["weights"])
    with pytest.raises(LifecycleError, match="'kv_cache' of pool 'actor' is asleep"):
        net.double()
    pool.wake()
    net.double()
    assert len(own) == 1


def open_files() -> int:
    return sum(1 for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and "deleted" in os.readlink(link))


def test_the_copy_has_no_name_and_goes_at_wake(tmp_path: Path) -> None:
    net, optimizer = trained(64)
    pool = pool_of(tmp_path, net, optimizer)
    before = open_files()
    pool.sleep(1)
    assert not list(tmp_path.iterdir())
    assert open_files() == before + 2  # one for each tag
    pool.wake(["optimizer"])
    assert open_files() == before + 1
    pool.wake()
    assert open_files() == before


def test_memory_never_written_is_not_missed(tmp_path: Path) -> None:
    net = nn.Module()
    net.register_buffer("untouched", torch.from_numpy(np.empty(0)))
    net.register_parameter("big", nn.Parameter(torch.empty(64 * MIB, dtype=torch.uint8), requires_grad=False))
    pool = pool_of(tmp_path, net)
    pool.sleep(2)
    pool.wake()
    assert net.big.shape == (64 * MIB,)


def test_stats_and_trim() -> None:
    manager = HostMemory()
    before = manager.stats()
    block = torch.ones(64 * MIB, dtype=torch.uint8)
    during = manager.stats()
    assert during.used - before.used >= 60 * MIB
    assert during.peak >= during.used * 0.99
    assert 0 < during.free < during.total
    del block
    small = [torch.ones(16 * 1024, dtype=torch.uint8) for _ in range(4096)]  # 64 MiB from the C library's heap
    last = small[-1]
    small.clear()
    manager.trim()
    assert manager.trim() < MIB
    assert manager.stats().used - before.used < 16 * MIB
    assert last.sum() == 16 * 1024


def test_pools_are_new_each_time() -> None:
    manager = memory.HostMemory()
    assert manager.pool("a") is not manager.pool("a")


def test_an_engine_has_no_allocator_that_sleeps_here() -> None:
    with pytest.raises(DeviceError, match="no engine allocator that sleeps.*\n.*rollout.engine=native"):
        memory.HostMemory().engine_pool()
