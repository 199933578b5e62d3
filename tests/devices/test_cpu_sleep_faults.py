"""Sleep on the CPU where it cannot be: misuse, full disks, failed reads, memory that stays or belongs to others."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from omni_devices.common import sleep as common
from omni_devices.cpu import hostcopy, sleep
from omni_devices.cpu.memory import HostMemory
from omni_devices.cpu.sleep import DiskBacking
from omni_portable.contracts.errors import LifecycleError
from tests.devices.sleeping import MIB, everything, pool_of, raw, trained


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
