"""Sleep and wake on the CPU: memory really goes away, bits come back, identity stays, every misuse is an error."""

from __future__ import annotations

import copy
import errno
import io
import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from omni_devices.common import sleep as common
from omni_devices.cpu import hostcopy, memory, sleep
from omni_devices.cpu.memory import HostMemory
from omni_devices.cpu.sleep import DiskBacking
from omni_portable.contracts.device import SleepPool
from omni_portable.contracts.errors import DeviceError, LifecycleError

MIB = 1 << 20


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


def pool_of(tmp_path: Path, net: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> common.SleepPool:
    pool = common.SleepPool("actor", DiskBacking(tmp_path))
    pool.register("weights", net)
    if optimizer:
        pool.register("optimizer", optimizer)
    return pool


@pytest.fixture(autouse=True)
def on_disk(tmp_path: Path) -> None:
    if hostcopy.filesystem(tmp_path) in hostcopy.IN_MEMORY:
        pytest.fail(f"{tmp_path} is in memory; run with --basetemp on a disk")


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


@pytest.mark.parametrize(
    ("prepare", "act", "message"),
    [
        ("sleep", lambda pool: pool.sleep(1), "nothing is awake"),
        ("sleep", lambda pool: pool.sleep(1, ["weights"]), "'weights' is asleep already"),
        ("sleep", lambda pool: pool.register("weights", nn.Linear(1, 1)), "wake it before"),
        ("", lambda pool: pool.wake(), "nothing is asleep"),
        ("", lambda pool: pool.wake(["weights"]), "'weights' is awake already"),
        ("", lambda pool: pool.sleep(1, ["kv_cache"]), "nothing is registered as 'kv_cache'\n.*weights"),
        ("", lambda pool: pool.sleep(3), "level 3 does not exist"),
        ("", lambda pool: pool.sleep(0), "level 0 does not exist"),
        ("", lambda pool: pool.sleep(1, []), "nothing is awake"),
    ],
)
def test_illegal_transitions(tmp_path: Path, prepare: str, act: object, message: str) -> None:
    pool = pool_of(tmp_path, nn.Linear(4, 4))
    if prepare:
        pool.sleep(1)
    with pytest.raises(LifecycleError, match=message):
        act(pool)  # type: ignore[operator]


def test_an_empty_pool_has_nothing_to_put_to_sleep() -> None:
    with pytest.raises(LifecycleError, match="nothing is awake"):
        HostMemory().pool("x").sleep()


@pytest.fixture
def small_disk() -> Iterator[None]:
    """The process may not write files above 1 MiB: a full disk that the kernel enforces."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_everything_awake(tmp_path: Path) -> None:
    small, big = nn.Linear(8, 8), nn.Linear(1024, 1024)
    pool = common.SleepPool("actor", DiskBacking(tmp_path))
    pool.register("weights", small)
    pool.register("activations", big)
    expected = big(torch.ones(1, 1024))
    with pytest.raises(LifecycleError, match="cannot keep its copy in .*nothing was put to sleep\n.*make room"):
        pool.sleep(1)
    assert torch.equal(big(torch.ones(1, 1024)), expected)
    assert small.state_dict()
    assert not list(tmp_path.iterdir())
    pool.sleep(2)  # needs no room


def test_the_copy_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = nn.Linear(4, 4)
    monkeypatch.setattr(hostcopy, "filesystem", lambda folder: "tmpfs")
    with pytest.raises(LifecycleError, match="which is a tmpfs: it would stay in memory\n.*TMPDIR"):
        pool_of(tmp_path, net).sleep(1)
    net(torch.ones(1, 4))


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


def test_a_failed_wake_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net, optimizer = trained(32)
    pool = pool_of(tmp_path, net, optimizer)
    kept = {name: raw(t) for name, t in everything(net, optimizer).items()}
    pool.sleep(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", lambda *args: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(LifecycleError, match="cannot wake weights, optimizer: .*Input/output error"):
            pool.wake()
        patch.setattr(os, "preadv", lambda *args: 0)
        with pytest.raises(LifecycleError, match="the copy ends after 0 of"):
            pool.wake()
    with pytest.raises(LifecycleError, match="asleep"):
        net(torch.ones(1, 32))
    pool.wake()
    assert {name: raw(t) for name, t in everything(net, optimizer).items()} == kept


@pytest.mark.parametrize(("level", "outcome"), [(1, "everything is awake again"), (2, "stay asleep")])
def test_memory_that_stays_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: int, outcome: str
) -> None:
    net = nn.Linear(4096, 2048, bias=False)  # 32 MiB: just enough to be judged
    kept = raw(net.weight)
    pool = pool_of(tmp_path, net)
    resident = sleep.host.resident()
    monkeypatch.setattr(sleep.host, "resident", lambda: resident)
    with pytest.raises(LifecycleError, match=rf"freed 0 of {32 * MIB} bytes; .*{outcome}"):
        pool.sleep(level)
    if level == 1:
        assert raw(net.weight) == kept
    else:
        pool.wake()
        assert torch.isnan(net.weight).all()


def test_small_pools_are_measured_but_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resident = sleep.host.resident()
    monkeypatch.setattr(sleep.host, "resident", lambda: resident)
    assert pool_of(tmp_path, nn.Linear(1024, 1024)).sleep(1).bytes == 0


def test_memory_never_written_is_not_missed(tmp_path: Path) -> None:
    net = nn.Module()
    net.register_buffer("untouched", torch.from_numpy(np.empty(0)))
    net.register_parameter("big", nn.Parameter(torch.empty(64 * MIB, dtype=torch.uint8), requires_grad=False))
    pool = pool_of(tmp_path, net)
    pool.sleep(2)
    pool.wake()
    assert net.big.shape == (64 * MIB,)


@pytest.fixture
def mapped(tmp_path: Path) -> nn.Module:
    """A module on tensors that safetensors maps from a file, 40 MiB each; their storages cannot be resized."""
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.randn(10 * MIB), "b": torch.randn(10 * MIB), "c": torch.randn(6)}, path)
    net = nn.Module()
    for name, tensor in load_file(path).items():
        assert not tensor.untyped_storage().resizable()
        net.register_parameter(name, nn.Parameter(tensor))
    return net


def test_mapped_files_are_released_too(tmp_path: Path, mapped: nn.Module) -> None:
    kept = {name: (id(p), raw(p)) for name, p in mapped.named_parameters()}
    pool = pool_of(tmp_path, mapped)
    ack = pool.sleep(1)
    assert ack.bytes >= 0.95 * 80 * MIB
    pool.wake()
    assert {name: (id(p), raw(p)) for name, p in mapped.named_parameters()} == kept
    pool.sleep(1)
    pool.wake()
    assert {name: (id(p), raw(p)) for name, p in mapped.named_parameters()} == kept


def test_mapped_files_that_others_use_are_refused(tmp_path: Path, mapped: nn.Module) -> None:
    alias = mapped.c.detach()
    with pytest.raises(LifecycleError, match="'c' lies in memory .* a tensor .* outside of the pool uses too"):
        pool_of(tmp_path, mapped).sleep(1)
    assert torch.equal(alias, mapped.c)
    del alias
    pool_of(tmp_path, mapped).sleep(1)


def test_overlapping_arrays_are_refused(tmp_path: Path) -> None:
    array = np.ones(100, dtype=np.float32)
    net = nn.Module()
    net.register_buffer("one", torch.from_numpy(array[:60]))
    net.register_buffer("two", torch.from_numpy(array[40:]))
    with pytest.raises(LifecycleError, match="'two' .* 'one' uses too"):
        pool_of(tmp_path, net).sleep(1)


def test_two_pools_cannot_hold_one_storage(tmp_path: Path) -> None:
    net = nn.Linear(4, 4)
    first, second = pool_of(tmp_path, net), pool_of(tmp_path, net)
    first.sleep(1)
    with pytest.raises(LifecycleError, match="'weight' was released outside of this pool"):
        second.sleep(1)
    first.wake()
    second.sleep(1)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(4, device="meta"), "is on 'meta'"),
        (torch.ones(4).share_memory_(), "shared memory"),
        (torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
    ],
    ids=["meta", "shared", "sparse"],
)
def test_tensors_without_memory_of_their_own_are_refused(tmp_path: Path, tensor: torch.Tensor, message: str) -> None:
    net = nn.Module()
    net.register_buffer("odd", tensor)
    with pytest.raises(LifecycleError, match=message):
        pool_of(tmp_path, net).sleep(1)


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
