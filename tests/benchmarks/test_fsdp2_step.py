"""A step of two ranks against one rank with the same local batch. Run with `pytest --benchmark-only tests/benchmarks`.

extra_info['ratio'] of the second is at most 1.3 where there is a core for each rank (and nothing else runs on them).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from omni_backends.rollout.native.engine import NativeRolloutEngine
from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine
from omni_portable.config.loader import resolve_model_path
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.rollout import Extent, SamplingPlan
from omni_portable.models.sd3 import SD3Options
from tests.support.engines import make_setup
from tests.support.requests import make_request

LOCAL, HEIGHT, WIDTH = 32, 32, 48
SECONDS: dict[int, float] = {}


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model_path("builtin:glyph-sd3")


@pytest.mark.parametrize("ranks", [1, 2])
def test_step(benchmark, folder: Path, ranks: int):
    setup = make_setup(
        "sd3", folder, lora_rank=0, options=SD3Options(max_sequence_length=16), height=HEIGHT, width=WIDTH
    )
    setup.config.device.threads, setup.config.actor.world_size = ranks, ranks
    setup.config.actor.micro_batch_size = LOCAL
    rollout = NativeRolloutEngine(setup)
    plan = SamplingPlan(kind="cps", noise_level=0.8, stochastic_steps=(1, 2, 3, 4))
    schedule = rollout._adapter.schedule(8, Extent(HEIGHT, WIDTH))
    count = LOCAL * ranks
    requests = [make_request(i, height=HEIGHT, width=WIDTH, schedule=schedule, plan=plan) for i in range(count)]
    trajectories = list(asyncio.run(rollout.generate(requests)).trajectories)
    spec = registry.spec("algorithm", "flow_grpo")
    rule = spec.load()(spec.options(step_kind="cps", noise_level=0.8))
    batch = TrainBatch(trajectories, torch.linspace(-1, 1, count))
    engine = Fsdp2TrainEngine(setup)
    try:
        result = benchmark.pedantic(lambda: engine.train_step(batch, rule), rounds=5, warmup_rounds=2)
    finally:
        engine.close()
    assert result.log_probs.shape == (count, 4)
    SECONDS[ranks] = benchmark.stats.stats.min
    benchmark.extra_info["samples_per_rank"] = LOCAL
    if len(SECONDS) == 2:
        benchmark.extra_info["ratio"] = SECONDS[2] / SECONDS[1]
