"""What engines in other processes keep between weight updates: their memory, and the last update for new processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from omni_backends.rollout.external.updates import WeightUpdates
from omni_backends.sync import collect_checksums, memory
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.models.weights import NamedTensorStream, checksums, make_stream
from tests.support.sync_target import InPlaceTarget, LocalWorkers, holders, named_shared_memory
from tests.support.sync_worker import ROOT, ProcessWorkers

SIZES = {"first": 30_000, "second": 7}
BUCKET = 65536


def values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}


def stream(seed: int) -> NamedTensorStream:
    return make_stream("full", values(seed).items(), None)


def inodes(updates: WeightUpdates) -> set[int]:
    return {segment.describe()["inode"] for segment in updates.channel._segments if segment is not None}


@pytest.fixture
def updates() -> Iterator[WeightUpdates]:
    made = WeightUpdates(BUCKET)
    yield made
    made.close()


@pytest.fixture
def workers() -> Iterator[ProcessWorkers]:
    group = ProcessWorkers(1, {name: (size,) for name, size in SIZES.items()})
    yield group
    group.close()


def test_memory_is_used_again_by_processes_that_replace_killed_ones_and_goes_when_it_is_closed(
    updates: WeightUpdates, workers: ProcessWorkers
) -> None:
    listed = named_shared_memory()
    for version in (1, 2):
        updates.send(stream(version), workers, version, keep=True)
    used = inodes(updates)
    assert len(used) == 2
    updates.send(stream(3), workers, 3, keep=True)
    assert inodes(updates) == used
    assert all(holders(inode) == {os.getpid(), workers.processes[0].pid} for inode in used)
    workers.processes[0].send_signal(signal.SIGKILL)
    workers.processes[0].wait()
    with pytest.raises(WeightSyncError, match="died"):
        updates.send(stream(4), workers, 4, keep=True)
    assert all(holders(inode) == {os.getpid()} for inode in used)
    anew = ProcessWorkers(1, {name: (size,) for name, size in SIZES.items()})
    try:
        report = updates.send_again(anew)
        assert report is not None
        assert report.version == 3
        assert collect_checksums(anew) == checksums(values(3).items())
        assert inodes(updates) == used
        updates.close()
        assert all(holders(inode) <= {anew.processes[0].pid} for inode in used)
    finally:
        anew.close()
    assert not any(holders(inode) for inode in used)
    assert named_shared_memory() <= listed


OWNER = """
import sys, torch
from omni_backends.rollout.external.updates import WeightUpdates
from tests.backends.rollout.test_weight_updates import BUCKET, SIZES, inodes, stream
from tests.support.sync_worker import ProcessWorkers

workers, updates = ProcessWorkers(1, {name: (size,) for name, size in SIZES.items()}), WeightUpdates(BUCKET)
for version in (1, 2):
    updates.send(stream(version), workers, version, keep=True)
print(*sorted(inodes(updates)), flush=True)
sys.stdin.read()
"""


def test_memory_of_an_owner_that_was_killed_goes_with_its_engine() -> None:
    """Which ends when its input does, as engines do."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdin=-1, stdout=-1, text=True)
    assert owner.stdout is not None
    used = [int(inode) for inode in owner.stdout.readline().split()]
    assert len(used) == 2
    pids = holders(used[0]) - {owner.pid}
    assert len(pids) == 1
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 60
    while any(holders(inode) for inode in used) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(holders(inode) for inode in used)


def test_what_is_not_kept_is_not_sent_again() -> None:
    """Nor is what was kept before: it would be another policy."""
    group, made = LocalWorkers(InPlaceTarget(values(99))), WeightUpdates(BUCKET)
    made.send(stream(1), group, 1, keep=True)
    made.send(stream(2), group, 2, keep=False)
    assert made.held is None
    assert made.send_again(group) is None
    made.close()


@pytest.mark.parametrize("room", [True, False])
def test_a_failed_update_leaves_what_is_held(
    updates: WeightUpdates, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    if not room:
        monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    target = InPlaceTarget(values(99))
    group = LocalWorkers(target)
    for version in (1, 2):
        updates.send(stream(version), group, version, keep=True)
    assert updates.held is not None
    target.fail.add("apply")
    with pytest.raises(WeightSyncError, match="no room"):
        updates.send(stream(3), group, 3, keep=True)
    assert updates.held.version == 2
    assert checksums(updates.held.tensors.items()) == checksums(values(2).items()) == collect_checksums(group)


@pytest.mark.parametrize("room", [True, False])
def test_the_former_update_is_here_until_it_is_settled(
    updates: WeightUpdates, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    if not room:
        monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    group = LocalWorkers(InPlaceTarget(values(99)))
    assert not updates.step_back(0), "nothing was held before"
    for version in (1, 2, 3):
        updates.send(stream(version), group, version, keep=True)
    assert updates.step_back(2)
    assert updates.held is not None
    assert updates.held.version == 2
    assert updates.send_again(group) is not None
    assert collect_checksums(group) == checksums(values(2).items()) == checksums(updates.held.tensors.items())
    assert not updates.step_back(1), "no further than one update"
    for version in (4, 5):
        updates.send(stream(version), group, version, keep=True)
    assert collect_checksums(group) == checksums(values(5).items())
    updates.settle()
    assert not updates.step_back(4)
