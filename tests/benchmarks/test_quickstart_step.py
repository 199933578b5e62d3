"""Where a step of the quickstart recipe spends its time, and how far a log-prob depends on the batch it is computed in.

Run with `pytest --benchmark-only tests/benchmarks`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch

from omni_portable.config.loader import load_config
from omni_portable.models.sd3.adapter import SD3Adapter
from omni_portable.reward.compose import RewardComposer
from omni_portable.trainer.run import run

RECIPE = "sd3/flow_grpo_ocr_tiny"


class Inside:
    """Seconds spent in the model's forwards and backwards and in rewards, while patched in."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    @contextmanager
    def _counted(self) -> Iterator[None]:
        started, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.seconds += time.perf_counter() - started

    def wrap(self, function):
        def counted(*args, **kwargs):
            with self._counted():
                return function(*args, **kwargs)

        return counted

    def wrap_async(self, function):
        async def counted(*args, **kwargs):
            with self._counted():
                return await function(*args, **kwargs)

        return counted

    def patches(self) -> ExitStack:
        stack = ExitStack()
        for name in ("velocity", "encode", "decode"):
            stack.enter_context(mock.patch.object(SD3Adapter, name, self.wrap(getattr(SD3Adapter, name))))
        stack.enter_context(mock.patch.object(torch.Tensor, "backward", self.wrap(torch.Tensor.backward)))
        scored = self.wrap_async(RewardComposer.score_async)
        stack.enter_context(mock.patch.object(RewardComposer, "score_async", scored))
        return stack


@pytest.mark.benchmark(group="quickstart")
def test_loop_overhead(benchmark, tmp_path: Path) -> None:
    """extra_info['overhead'] is the share of steps outside model forward / backward and reward; at most 0.05 wanted."""
    overrides = [
        "trainer.total_steps=3",
        "trainer.validate_before=false",
        "data.validation=''",
        "trainer.progress='off'",
    ]
    config = load_config(RECIPE, [*overrides, f"trainer.run_dir={tmp_path}/run", "consistency.batch_shapes=[]"])
    inside = Inside()
    with inside.patches():
        benchmark.pedantic(lambda: run(config), rounds=1)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = sum(row["timing_s/step"] for row in rows)
    benchmark.extra_info["step_seconds"] = steps / len(rows)
    benchmark.extra_info["overhead"] = 1 - inside.seconds / steps
    assert len(rows) == 3


@pytest.mark.benchmark(group="quickstart")
def test_batch_shape_gap(benchmark, tmp_path: Path) -> None:
    """extra_info['worst_gap'] over batch shapes 1..32, in log-prob; at most 1e-4 wanted."""
    shapes = list(range(1, 33))
    config = load_config(
        RECIPE,
        [
            "trainer.total_steps=1",
            "data.train_batch_size=2",
            "data.validation=''",
            "trainer.progress='off'",
            f"trainer.run_dir={tmp_path}/run",
            f"consistency.batch_shapes={shapes}",
        ],
    )
    benchmark.pedantic(lambda: run(config), rounds=1)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert all(f"rollout_corr/batch_shape_gap/{size}" in row for size in shapes)
    assert row["rollout_corr/ratio_exact_one"] == 1.0
    benchmark.extra_info["worst_gap"] = row["rollout_corr/batch_shape_gap/max"]
