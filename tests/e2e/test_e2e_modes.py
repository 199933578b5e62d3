"""Execution modes through the command line: responses that new weights interrupt, and devices that are lent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_portable.config.recipes import find_recipe
from tests.e2e.conftest import Cli
from tests.support.token_models import folder

LONG = (
    "data.train_batch_size=4",
    "rollout.n=4",
    "actor.mini_batch_size=16",
    "rollout.max_num_seqs=4",
    "rollout.max_new_tokens=48",
    "rollout.temperature=3.0",
    "trainer.validate_before=false",
    "consistency.batch_shapes=[]",
    "consistency.max_logprob_gap=1e-4",
    "trainer.total_steps=4",
    "trainer.progress=off",
    "trainer.loggers=[jsonl]",
    "device.threads=1",
)
"""Responses of many tokens from a model of random weights: an update ends before they do."""


def train(cli: Cli, run_dir: Path, *overrides: str) -> list[dict[str, Any]]:
    recipe = find_recipe("qwen3/grpo_letters_tiny")
    outcome = cli("train", recipe, f"trainer.run_dir={run_dir}", f"model.path={folder('qwen3')}", *LONG, *overrides)
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_interrupted_responses_go_on_and_devices_are_lent(cli: Cli, tmp_path: Path) -> None:
    hybrid = ("trainer.hybrid.enabled=true", "trainer.hybrid.actor_sleeps=[optimizer]")
    rows = train(cli, tmp_path / "run", "trainer.mode=fully_async", "dataplane.max_staleness=2", *hybrid)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert sum(row["rollout/interrupted/continued"] for row in rows) > 0
    assert sum(row["rollout/interrupted/kept_tokens"] for row in rows) > 0
    assert max(row["response/mixed_versions"] for row in rows) > 0
    assert all(row["reward/samples"] == 16 for row in rows), "nothing is lost"
    assert all(row["replay/staleness/max"] <= 2 for row in rows)
    assert all(row["response/length_max"] <= 48 for row in rows), "limits count the whole response"
    assert sum(row["hybrid/lends"] for row in rows) > 0
    assert sum(row["hybrid/requests"] for row in rows) > 0
    assert all(row["hybrid/out"] == 0 for row in rows)
    stages = {json.loads(line)["stage"] for line in (tmp_path / "run" / "timeline.jsonl").read_text().splitlines()}
    assert {"lend", "lent", "reclaim"} <= stages
    assert "mode fully_async" in (tmp_path / "run" / "plan.txt").read_text()


def test_a_resumed_run_that_lends_goes_on(cli: Cli, tmp_path: Path) -> None:
    given = ("trainer.mode=separate_async", "dataplane.max_staleness=1", "trainer.hybrid.enabled=true")
    train(cli, tmp_path / "run", *given, "trainer.total_steps=1")
    more = ("trainer.total_steps=2", "trainer.resume=auto", "trainer.hybrid.sleep_level=2")
    rows = train(cli, tmp_path / "run", *given, *more)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["policy/version"] > rows[0]["policy/version"]
    assert rows[1]["hybrid/failed_updates"] == 0
