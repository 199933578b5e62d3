"""Images per second: 32 requests one by one against batches. Run with `pytest --benchmark-only tests/benchmarks`."""

import asyncio

import pytest

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_portable.config.loader import resolve_model_path
from omni_portable.contracts.rollout import Extent, SamplingPlan
from omni_portable.models.sd3 import SD3Options
from tests.support.engines import make_setup
from tests.support.requests import make_request

COUNT, HEIGHT, WIDTH, STEPS = 32, 32, 48, 8
PLAN = SamplingPlan(kind="sde", noise_level=0.7, stochastic_steps=(1, 2))


@pytest.mark.parametrize("max_num_seqs", [1, 8, 32])
def test_rollout_throughput(benchmark, max_num_seqs):
    folder = resolve_model_path("builtin:glyph-sd3")
    options = SD3Options(max_sequence_length=16)  # as in the packaged recipe
    setup = make_setup(
        "sd3", folder, lora_rank=0, options=options, max_num_seqs=max_num_seqs, height=HEIGHT, width=WIDTH
    )
    engine = NativeRolloutEngine(setup)
    schedule = engine._adapter.schedule(STEPS, Extent(HEIGHT, WIDTH))
    requests = [make_request(i, height=HEIGHT, width=WIDTH, schedule=schedule, plan=PLAN) for i in range(COUNT)]
    result = benchmark.pedantic(lambda: asyncio.run(engine.generate(requests)), rounds=3, warmup_rounds=1)
    figures = engine.statistics()
    assert len(result.trajectories) == COUNT
    assert figures["perf/rollout/batch_size/mean"] == max_num_seqs
    assert figures["perf/rollout/forwards"] == 4 * STEPS * COUNT / max_num_seqs  # 1 warm-up + 3 measured
    benchmark.extra_info["images_per_second"] = COUNT / benchmark.stats.stats.mean
    benchmark.extra_info["seconds"] = {k.rpartition("/")[2]: v for k, v in figures.items() if "/seconds/" in k}
