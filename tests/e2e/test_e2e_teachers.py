"""Teachers outside the train engine, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.conftest import Cli
from tests.e2e.rundirs import metrics
from tests.e2e.teachers import assert_alike, distilling

POOL = "teacher.placement=pool"


def test_both_placements_are_the_same_run(train: Cli, workshop: Path, tmp_path: Path) -> None:
    given = (*distilling(workshop), "trainer.total_steps=2")
    for name, placement in (("engine", "teacher.placement=engine"), ("pool", POOL)):
        outcome = train(tmp_path / name, *given, placement)
        assert outcome.code == 0, outcome.err
    assert_alike(tmp_path / "engine", tmp_path / "pool")
    rows = metrics(tmp_path / "pool")
    assert all(row["teacher/failed_samples"] == 0 for row in rows.values())
    assert rows[1]["actor/distill_kl_loss"] > 0, "there is something to learn from the teachers"
    spans = [json.loads(line) for line in (tmp_path / "pool" / "timeline.jsonl").read_text().splitlines()]
    drawn = {stage: [s for s in spans if s["stage"] == stage and s["step"] == 1] for stage in ("rollout", "teacher")}
    assert len(drawn["teacher"]) == 2, "one for each piece"
    assert min(s["start"] for s in drawn["teacher"]) < max(s["end"] for s in drawn["rollout"]), "beside rollout"


def test_what_a_pool_cannot_do_is_refused_before_anything_loads(train: Cli, workshop: Path, tmp_path: Path) -> None:
    outcome = train(tmp_path / "none", POOL)
    assert outcome.code == 2
    assert "distils from no teacher" in outcome.err
    prompts = workshop / "unknown.jsonl"
    prompts.write_text('{"prompt": "one", "who": "a"}\n{"prompt": "two", "who": "c"}\n')
    outcome = train(tmp_path / "unknown", *distilling(workshop), POOL, f"data.train={prompts}")
    assert outcome.code == 1
    assert "unknown.jsonl row 2: field 'who' is 'c', which is none of model.teachers" in outcome.err
    assert "valid choices: a, b" in outcome.err
    assert not (tmp_path / "unknown").exists()
