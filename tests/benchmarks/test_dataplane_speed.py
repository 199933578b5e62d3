"""Groups through put, sample and clear, against Ray's object store with the same bytes.

Run with `pytest --benchmark-only tests/benchmarks/test_dataplane_speed.py`. OMNI_PORTABLE_BENCH_GROUPS=256 moves the
whole 4 GiB; only `WINDOW` groups are stored at a time, whatever the total.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

ray = pytest.importorskip("ray")
pytest.importorskip("transfer_queue")

from omni_backends.dataplane.transferqueue import TransferQueueOptions  # noqa: E402
from omni_backends.dataplane.transferqueue.plane import TransferQueuePlane  # noqa: E402
from omni_portable.contracts.dataplane import ScoredGroup  # noqa: E402
from omni_portable.rollout.replay_buffer import ReplayBuffer  # noqa: E402
from tests.support.requests import make_group  # noqa: E402

pytestmark = pytest.mark.ray

SAMPLES, MIB = 16, 1 << 20
GROUPS, WINDOW = int(os.environ.get("OMNI_PORTABLE_BENCH_GROUPS", "32")), 8


def group_of(number: int, size: int) -> ScoredGroup:
    """16 trajectories of `size` bytes each, none of which share memory."""
    group = make_group(f"g{number}", number, [0] * SAMPLES)
    made = [torch.full((size // 4,), float(number)) for _ in range(SAMPLES)]
    group.trajectories = [replace(t, final_latents=x) for t, x in zip(group.trajectories, made, strict=True)]
    return group


@pytest.fixture(scope="module")
def plane(cluster):
    made = TransferQueuePlane(TransferQueueOptions(capacity_groups=2 * WINDOW, capacity_mib=4 * WINDOW * SAMPLES))
    yield made
    made.close()


def through_ray(size: int, total: int) -> dict[str, float]:
    """Seconds of put and of get with a copy, object by object, released in windows."""
    seconds = {"put": 0.0, "get": 0.0}
    arrays = [np.full(size, 7, np.uint8) for _ in range(SAMPLES)]
    for _ in range(0, total, WINDOW):
        start = time.perf_counter()
        references = [ray.put(array) for _ in range(WINDOW) for array in arrays]
        middle = time.perf_counter()
        for reference in references:
            ray.get(reference).copy()  # what training gets must be writable, as what comes from the plane is
        seconds["put"] += middle - start
        seconds["get"] += time.perf_counter() - middle
        del references
    return seconds


def through_plane(plane: TransferQueuePlane, size: int, total: int) -> dict[str, float]:
    """Seconds of add (packing included) and of sample (reading, unpacking and clearing)."""
    seconds = {"put": 0.0, "get": 0.0}
    buffer = ReplayBuffer(plane, max_staleness=0)
    for first in range(0, total, WINDOW):
        groups = [group_of(number, size) for number in range(first, first + WINDOW)]
        start = time.perf_counter()
        for group in groups:
            buffer.add(group)
        middle = time.perf_counter()
        back = buffer.sample(WINDOW, 0)
        seconds["put"] += middle - start
        seconds["get"] += time.perf_counter() - middle
        assert back[-1].trajectories[-1].final_latents[-1].item() == first + WINDOW - 1
        assert len(buffer) == 0
    return seconds


@pytest.mark.parametrize("size", [MIB // 16, MIB], ids=["64 KiB", "1 MiB"])
def test_groups_through_the_plane_and_through_ray(benchmark, plane, size):
    through_plane(plane, size, WINDOW), through_ray(size, WINDOW)  # warm
    raw, ours = [], []

    def both() -> None:  # side by side, so that both meet the same machine
        raw.append(through_ray(size, GROUPS))
        ours.append(through_plane(plane, size, GROUPS))

    benchmark.pedantic(both, rounds=3)
    moved = GROUPS * SAMPLES * size / MIB
    for name, runs in (("ray", raw), ("plane", ours)):
        for step in ("put", "get"):
            benchmark.extra_info[f"{name}_{step}_mib_per_s"] = moved / min(run[step] for run in runs)
        benchmark.extra_info[f"{name}_mib_per_s"] = moved / min(sum(run.values()) for run in runs)
    ratio = benchmark.extra_info["plane_mib_per_s"] / benchmark.extra_info["ray_mib_per_s"]
    benchmark.extra_info["plane_of_ray"] = ratio
    print({name: round(value, 2) for name, value in benchmark.extra_info.items()})
