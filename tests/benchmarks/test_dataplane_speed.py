"""Groups through put, sample and clear, against Ray's object store with the same bytes.

Run with `pytest --benchmark-only tests/benchmarks/test_dataplane_speed.py`. OMNI_PORTABLE_BENCH_GROUPS=256 moves the
whole 4 GiB; only `WINDOW` groups are stored at a time, whatever the total.
"""

from __future__ import annotations

import os
import statistics
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


def through_ray(arrays: list[np.ndarray]) -> tuple[float, float]:
    """Seconds of put and of get with a copy, object by object, of one window."""
    start = time.perf_counter()
    references = [ray.put(array) for _ in range(WINDOW) for array in arrays]
    middle = time.perf_counter()
    held = [ray.get(reference).copy() for reference in references]  # writable and kept, as what training gets is
    end = time.perf_counter()
    assert len(held) == WINDOW * SAMPLES
    return middle - start, end - middle


def through_plane(buffer: ReplayBuffer, groups: list[ScoredGroup]) -> tuple[float, float]:
    """Seconds of add (packing included) and of sample (reading, unpacking and clearing) of one window."""
    start = time.perf_counter()
    for group in groups:
        buffer.add(group)
    middle = time.perf_counter()
    held = buffer.sample(WINDOW, 0)
    end = time.perf_counter()
    last = groups[-1].trajectories[-1].final_latents
    assert held[-1].trajectories[-1].final_latents.equal(last)
    assert len(buffer) == 0
    return middle - start, end - middle


@pytest.mark.parametrize("size", [MIB // 16, MIB], ids=["64 KiB", "1 MiB"])
def test_groups_through_the_plane_and_through_ray(benchmark, plane, size):
    """`plane_of_ray` compares all the bytes; `plane_of_ray_median` the median windows, which a busy machine leaves
    alone."""
    arrays = [np.full(size, 7, np.uint8) for _ in range(SAMPLES)]
    raw, ours = [], []

    def both() -> None:  # window by window, so that both meet the same machine
        buffer = ReplayBuffer(plane, max_staleness=0)
        raw.clear(), ours.clear()
        for first in range(0, GROUPS, WINDOW):
            groups = [group_of(number, size) for number in range(first, first + WINDOW)]
            raw.append(through_ray(arrays))
            ours.append(through_plane(buffer, groups))

    benchmark.pedantic(both, rounds=1, warmup_rounds=1)
    moved = WINDOW * SAMPLES * size / MIB
    for name, windows in (("ray", raw), ("plane", ours)):
        puts, gets = zip(*windows, strict=True)
        figures = {"put": puts, "get": gets, "both": [sum(window) for window in windows]}
        for step, seconds in figures.items():
            benchmark.extra_info[f"{name}_{step}_mib_per_s"] = moved * len(windows) / sum(seconds)
            benchmark.extra_info[f"{name}_{step}_median_mib_per_s"] = moved / statistics.median(seconds)
    for kind in ("", "_median"):
        both_sides = [benchmark.extra_info[f"{name}_both{kind}_mib_per_s"] for name in ("plane", "ray")]
        benchmark.extra_info[f"plane_of_ray{kind}"] = both_sides[0] / both_sides[1]
    print({name: round(value, 2) for name, value in benchmark.extra_info.items()})
