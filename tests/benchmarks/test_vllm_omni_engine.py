"""vLLM-Omni on this machine: its start, and the batches that it forms under load.

pytest tests/benchmarks/test_vllm_omni_engine.py --benchmark-only
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from omni_portable.contracts import registry
from omni_portable.contracts.rollout import Extent, SamplingPlan
from omni_portable.models.setup import EngineSetup
from tests.support.engines import make_setup, require_installed
from tests.support.requests import make_request

require_installed("vllm", "vllm_omni")

COUNT, SIDE, STEPS, PACK = 32, 64, 8, 8
PLAN = SamplingPlan(kind="sde", noise_level=0.7, stochastic_steps=(1, 2))


def setup_of(**options: Any) -> EngineSetup:
    """The tiny SD3 with a LoRA, at most :data:`PACK` requests per forward."""
    from omni_portable.config.tiny import tiny_folder

    made = registry.spec("model", "sd3").options()
    setup = make_setup("sd3", tiny_folder("sd3"), options=made, max_num_seqs=PACK)
    setup.config.rollout.options = options
    return setup


def processor_seconds() -> float:
    """Of all processes that were started here and have ended: what a busy machine does not stretch."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module", params=[False, True], ids=["requests", "steps"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = registry.load("rollout_engine", "vllm_omni")(setup_of(step_execution=request.param))
    yield made
    made.close()


def test_start_of_the_tiny_model(benchmark: Any) -> None:
    """Seconds from nothing to an engine that answers, most of them for importing vLLM."""
    engines: list[Any] = []

    def start() -> None:
        engines.append(registry.load("rollout_engine", "vllm_omni")(setup_of()))

    before = processor_seconds()
    benchmark.pedantic(start, rounds=2, teardown=lambda: engines.pop().close())
    benchmark.extra_info |= {
        "seconds": benchmark.stats.stats.min,
        "processor_seconds": (processor_seconds() - before) / 2,
    }
    print({name: f"{value:.4g}" for name, value in benchmark.extra_info.items()})


def test_batches_under_load(benchmark: Any, engine: Any) -> None:
    """The size of the worker's own forwards, of four times as many requests as fit into one."""
    schedule = engine._adapter.schedule(STEPS, Extent(SIDE, SIDE))
    requests = [make_request(i, height=SIDE, width=SIDE, schedule=schedule, plan=PLAN) for i in range(COUNT)]
    engine.statistics()
    result = benchmark.pedantic(lambda: asyncio.run(engine.generate(requests)), rounds=3, warmup_rounds=1)
    figures = engine.statistics()
    assert len(result.trajectories) == COUNT
    assert figures["perf/rollout/batch_size/max"] == PACK
    benchmark.extra_info |= {
        "requested_batch_size": PACK,
        "mean_batch_size": figures["perf/rollout/batch_size/mean"],
        "images_per_second": COUNT / benchmark.stats.stats.mean,
    }
    print({name: f"{value:.4g}" for name, value in benchmark.extra_info.items()})
