"""Execution modes through the command line: responses that new weights interrupt, and devices that are lent."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.conftest import Cli
from tests.e2e.letters import train_letters


def test_interrupted_responses_go_on_and_devices_are_lent(cli: Cli, tmp_path: Path) -> None:
    hybrid = ("trainer.hybrid.enabled=true", "trainer.hybrid.actor_sleeps=[optimizer]")
    rows = train_letters(cli, tmp_path / "run", "trainer.mode=fully_async", "dataplane.max_staleness=2", *hybrid)
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
    train_letters(cli, tmp_path / "run", *given, "trainer.total_steps=1")
    more = ("trainer.total_steps=2", "trainer.resume=auto", "trainer.hybrid.sleep_level=2")
    rows = train_letters(cli, tmp_path / "run", *given, *more)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["policy/version"] > rows[0]["policy/version"]
    assert rows[1]["hybrid/failed_updates"] == 0
