"""Replay buffer up to a million trajectories. Run with `pytest --benchmark-only tests/benchmarks`."""

from __future__ import annotations

import itertools

import pytest

from omni_portable.planning.simulate.roles import LightPlane, light_group
from omni_portable.rollout.replay_buffer import ReplayBuffer

GROUP = 16


@pytest.mark.parametrize("trajectories", [10_000, 100_000, 1_000_000])
def test_add_count_and_sample_among_many(benchmark, trajectories):
    """One round of 16 groups: added, counted, sampled, while so many wait."""
    buffer = ReplayBuffer(LightPlane(), max_staleness=4)  # type: ignore[arg-type]
    numbers = itertools.count()
    for number in itertools.islice(numbers, trajectories // GROUP):
        buffer.add(light_group(str(number), number, number % 4, GROUP))

    def round_of_groups() -> None:
        for number in itertools.islice(numbers, GROUP):
            buffer.add(light_group(str(number), number, number % 4, GROUP))
        assert buffer.available(4) == len(buffer)
        assert len(buffer.sample(GROUP, 4)) == GROUP

    benchmark.pedantic(round_of_groups, rounds=50, warmup_rounds=5)
    assert len(buffer) == trajectories // GROUP
    benchmark.extra_info["microseconds_per_group"] = benchmark.stats.stats.median / GROUP * 1e6
