"""Images per second: 32 requests one by one against one batch. Run with `pytest --benchmark-only tests/benchmarks`."""

import asyncio

import pytest
from omni_backends.rollout.native.engine import NativeRolloutEngine

from omni_portable.contracts.rollout import SamplingPlan
from omni_portable.models.sd3.tiny import build_tiny_sd3
from tests.support.engines import make_setup
from tests.support.requests import make_request

COUNT, SIZE, STEPS = 32, 32, 8
PLAN = SamplingPlan(kind="sde", noise_level=0.7, stochastic_steps=(1, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_tiny_sd3(tmp_path_factory.mktemp("sd3"), layers=4, heads=4, head_dim=16)


@pytest.mark.parametrize("max_num_seqs", [1, 8, 32])
def test_rollout_throughput(benchmark, folder, max_num_seqs):
    engine = NativeRolloutEngine(make_setup("sd3", folder, max_num_seqs=max_num_seqs, height=SIZE, width=SIZE))
    schedule = engine._adapter.schedule(STEPS, SIZE, SIZE)
    requests = [make_request(i, height=SIZE, width=SIZE, schedule=schedule, plan=PLAN) for i in range(COUNT)]
    result = benchmark.pedantic(lambda: asyncio.run(engine.generate(requests)), rounds=3, warmup_rounds=1)
    figures = engine.statistics()
    assert len(result.trajectories) == COUNT
    assert figures["rollout/batch_size/mean"] == max_num_seqs
    benchmark.extra_info["images_per_second"] = COUNT / benchmark.stats.stats.mean
    benchmark.extra_info["seconds"] = {k.rpartition("/")[2]: v for k, v in figures.items() if "/seconds/" in k}
