"""Simulated runs on thousands of devices. Run with `pytest --benchmark-only tests/benchmarks`."""

from __future__ import annotations

import time

import pytest

from omni_portable.planning.placement.model import Costs
from omni_portable.planning.placement.profile import Placement
from omni_portable.planning.simulate.run import simulate
from omni_portable.planning.simulate.workload import EXAMPLE, make_workload

STEPS = 1000


@pytest.mark.parametrize(
    ("mode", "devices", "rollout", "staleness"),
    [
        ("separate_async", 64, 32, 2),
        ("sync", 4096, 4096, 0),
        ("separate_async", 4096, 2048, 2),
        ("fully_async", 4096, 2048, 2),
    ],
)
def test_a_thousand_steps(benchmark, mode, devices, rollout, staleness):
    """Scattered times, a call per replica and step or more: seconds of this process' own work are counted."""
    placement = Placement(mode, devices, rollout, 1, devices // 4, staleness)
    work = make_workload(EXAMPLE, Costs(16, 0, 16, 0, sync=1, switch=2), placement, 0.0, times="lognormal:0.3")
    started = time.process_time()
    outcome = benchmark.pedantic(lambda: simulate(work, STEPS), rounds=1)
    seconds = time.process_time() - started
    assert sum(outcome.staleness.values()) == STEPS * placement.prompts
    benchmark.extra_info |= {"processor_seconds": seconds, "events": outcome.events}
    assert seconds < 60
