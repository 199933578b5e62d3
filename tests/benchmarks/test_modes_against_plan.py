"""Separate rollout against taking turns, with long generation. Run with `pytest --benchmark-only tests/benchmarks`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path

import pytest

from omni_portable.planning.placement.fit import fit
from omni_portable.planning.placement.measured import profile_of_run
from omni_portable.planning.placement.model import predict
from omni_portable.planning.placement.profile import Placement, Profile
from omni_portable.planning.simulate.workload import Workload
from tests.planning.toy_run import ToyRun

STEPS, PROMPTS, SAMPLES = 8, 8, 2
SAMPLE_S, TRAIN_S, SYNC_S = 0.05, 0.25, 0.02
IN_TURN = Placement("sync", 2, 2, 2, PROMPTS)
SEPARATE = Placement("separate_async", 2, 1, 1, PROMPTS, 1)


def run(placement: Placement, train_s: float) -> ToyRun:
    work = Workload(placement, SAMPLE_S, train_s, SYNC_S, samples=SAMPLES, piece=SAMPLES)
    toy = ToyRun(work, STEPS, time.sleep)
    asyncio.run(toy.run())
    return toy


def profile_of(toy: ToyRun, run_dir: Path) -> Profile:
    """As `plan placement RUN_DIR` reads it; a replica of two devices is as fast as one of one."""
    run_dir.mkdir()
    config = {"trainer": {"mode": "sync"}, "data": {"train_batch_size": PROMPTS}, "rollout": {"n": SAMPLES}}
    (run_dir / "config.yaml").write_text(json.dumps(config))
    lines = (json.dumps({"step": step} | timing) for step, timing in enumerate(toy.timings, start=1))
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    profile = profile_of_run(run_dir, devices=2, tensor_parallel=2)
    return dataclasses.replace(profile, tensor_parallel_efficiency={2: 0.5})


def test_long_generation_is_faster_beside_training_by_what_the_plan_says(benchmark, tmp_path):
    """Two devices: in turn, one replica of both; separate, one for each side, so that training takes twice as long."""
    in_turn = run(IN_TURN, TRAIN_S)
    profile = profile_of(in_turn, tmp_path / "run")
    costs = fit(profile)[0].costs
    planned = predict(costs, profile, IN_TURN, 0.0).step_s / predict(costs, profile, SEPARATE, 0.0).step_s
    separate = benchmark.pedantic(lambda: run(SEPARATE, 2 * TRAIN_S), rounds=1)

    def step_s(toy: ToyRun) -> float:
        return (toy.ends[-1] - toy.ends[1]) / (len(toy.ends) - 2)

    faster = step_s(in_turn) / step_s(separate)
    benchmark.extra_info |= {"faster": faster, "planned": planned}
    assert faster > 1.1
    assert faster == pytest.approx(planned, rel=0.1)
