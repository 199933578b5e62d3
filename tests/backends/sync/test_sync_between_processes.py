"""Syncs with real worker processes: shared memory and gloo, and processes killed in the middle on either side."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from omni_backends.sync import collect_checksums, send_weights
from omni_backends.sync.broadcast import BroadcastSender
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.models.weights import NamedTensorStream, checksums, make_stream
from tests.support.sync_target import named_shared_memory
from tests.support.sync_worker import ROOT, ProcessWorkers

SIZES = {"first": 30_000, "second": 7, "third": 20_001}


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessWorkers]:
    """Two workers for the whole module: starting them takes longer than all syncs."""
    group = ProcessWorkers(2, {name: (size,) for name, size in SIZES.items()})
    yield group
    group.close()


def held(workers: ProcessWorkers) -> int:
    """The version that all workers hold."""
    (version,) = {answer["version"] for answer in workers("weights_checksum", {})}
    return int(version)


def values(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}


def stream(seed: int = 0) -> NamedTensorStream:
    return make_stream("full", values(seed).items(), None)


def test_shared_memory_and_gloo_bring_the_same(workers: ProcessWorkers) -> None:
    report = send_weights(stream(1), workers, version=1, bucket_bytes=65536)
    assert collect_checksums(workers) == checksums(values(1).items())
    assert (report.buckets, report.workers) == (4, 2)
    channel = BroadcastSender(2, 65536, timeout=timedelta(seconds=60))
    for version in (2, 3):
        report = send_weights(stream(version), workers, version=version, channel=channel)
        assert (report.channel, report.buckets) == ("broadcast", 4)
        assert collect_checksums(workers) == checksums(values(version).items())
    channel.close()


SENDER = """
import json, sys, torch
from omni_backends.sync import send_weights
from omni_portable.models.weights import make_stream

def call(method, arguments):
    print(json.dumps([method, arguments]), flush=True)
    return json.loads(sys.stdin.readline())

sizes, version = json.loads(sys.argv[1])
send_weights(make_stream("full", {n: torch.ones(s) for n, s in sizes.items()}.items(), None), call, version=version)
"""


@pytest.mark.parametrize("last", ["weights_bucket", "weights_commit"])
def test_a_sender_that_is_killed_leaves_no_memory_and_no_lock(workers: ProcessWorkers, last: str) -> None:
    """Also after the workers have applied: the next update starts from the old weights."""
    next_version = held(workers) + 1
    before = collect_checksums(workers)
    listed = named_shared_memory()
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER, json.dumps([SIZES, next_version])], cwd=ROOT, stdin=-1, stdout=-1, text=True
    )
    assert sender.stdin is not None
    assert sender.stdout is not None
    for line in sender.stdout:
        answers = workers(*json.loads(line))
        assert all(answer["ok"] for answer in answers), answers
        if json.loads(line)[0] == last:
            break
        sender.stdin.write(json.dumps(answers) + "\n")
        sender.stdin.flush()
    with pytest.raises(WeightSyncError, match=f"by process {sender.pid} is still under way"):
        send_weights(stream(), workers, version=next_version)
    sender.kill()
    sender.communicate()
    assert named_shared_memory() <= listed
    bad = NamedTensorStream(stream().manifest, values() | {"second": torch.zeros(7)})
    with pytest.raises(WeightSyncError, match="'second' arrived with checksum"):
        send_weights(bad, workers, version=next_version)
    assert collect_checksums(workers) == before
    assert send_weights(stream(), workers, version=next_version).version == next_version


def test_a_worker_missing_from_the_broadcast_does_not_hang(workers: ProcessWorkers) -> None:
    next_version = held(workers) + 1
    channel = BroadcastSender(3, 65536, timeout=timedelta(seconds=3))
    with pytest.raises(WeightSyncError, match=r"broadcast|broke off"):
        send_weights(stream(), workers, version=next_version, channel=channel)
    channel.close()
    assert send_weights(stream(), workers, version=next_version).version == next_version


def test_a_worker_that_is_killed_is_named_and_nothing_stays(workers: ProcessWorkers) -> None:
    """The last test of the module: one worker is left."""
    next_version = held(workers) + 1
    listed = named_shared_memory()

    def call(method: str, arguments: dict[str, Any]) -> list[Any]:
        if method == "weights_bucket" and arguments["header"]["index"] == 1:
            workers.processes[1].send_signal(signal.SIGKILL)
            workers.processes[1].wait()
        return workers(method, arguments)

    with pytest.raises(WeightSyncError, match=r"worker 1 answered weights_bucket with 'died'"):
        send_weights(stream(), call, version=next_version, bucket_bytes=65536)
    assert named_shared_memory() <= listed
    workers.processes.pop()
    assert held(workers) == next_version - 1
    assert send_weights(stream(), workers, version=next_version).workers == 1
