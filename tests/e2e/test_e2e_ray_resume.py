"""Runs that go on elsewhere, or with other replicas, and of whose replicas one does not take its weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from omni_portable.trainer import placing
from omni_portable.trainer.checkpoint import list_checkpoints
from tests.e2e import fragile
from tests.e2e.fragile import AGAIN, RUN, without_versions
from tests.e2e.rundirs import differences, equal_tensors

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

TWO = ("launcher.name=ray", "launcher.restarts=0", "rollout.replicas=2", "trainer.sync_attempts=2")
"""Nothing is kept for successors: replicas that are ahead go back by themselves."""
ASYNC = ("trainer.mode=separate_async", "dataplane.max_staleness=1")


@pytest.fixture(autouse=True)
def _fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "HERE", fragile.HERE)


def test_a_run_that_moves_and_whose_replicas_fail_equals_one_that_does_not(cluster: Any, train: Any, tmp_path: Path):
    """One process, then two replicas under Ray, whose first update one of them cannot apply, nor (twice) a later one;
    then one process again."""
    still, run_dir = tmp_path / "still", tmp_path / "run"
    assert train(still, *RUN, "trainer.total_steps=4").code == 0
    assert train(run_dir, *RUN, "trainer.total_steps=1").code == 0

    fragile.prepare(run_dir, 2, 5, 6)
    outcome = train(run_dir, *RUN, *TWO, "trainer.total_steps=4")
    assert outcome.code == 1, outcome.err
    assert re.search(r"rollout replica 'rollout-\d': the tensor '\S+' could not be written: no memory", outcome.err)
    assert "did not go back" not in outcome.err
    assert "trainer.resume=auto" in outcome.err
    log = (run_dir / "log.txt").read_text()
    assert log.count(AGAIN) == 2
    assert re.findall(r"back at policy version (\d)", log) in (
        ["0", "4", "4"],
        ["0", "4"],
        ["4", "4"],
        ["0"],
        ["4"],
        [],
    )
    assert fragile.unused(run_dir) == []
    assert [folder.name for folder in list_checkpoints(run_dir / "checkpoints")] == ["step_000001", "step_000002"]

    outcome = train(run_dir, *RUN, "trainer.total_steps=4")
    assert outcome.code == 0, outcome.err
    assert differences(without_versions(still), without_versions(run_dir)) == []
    assert equal_tensors(still / "export", run_dir / "export")


def test_rollout_ahead_of_training_goes_on_with_more_and_with_fewer_replicas(cluster: Any, train: Any, tmp_path: Path):
    run_dir = tmp_path / "run"
    assert train(run_dir, *RUN, *ASYNC, "trainer.total_steps=1").code == 0
    fragile.prepare(run_dir, 2)
    outcome = train(run_dir, *RUN, *ASYNC, *TWO, "trainer.total_steps=3")
    assert outcome.code == 0, outcome.err
    assert (run_dir / "log.txt").read_text().count(AGAIN) == 1
    outcome = train(run_dir, *RUN, *ASYNC, "trainer.total_steps=4")
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row.get("perf/rollout/replicas") for row in rows] == [None, 2.0, 2.0, None]
    assert [row["policy/version"] for row in rows] == [1, 3, 4, 5], "one update was sent twice"
    assert all((row["reward/samples"], row["replay/evicted_groups"]) == (4, 0) for row in rows)
    assert all(row["replay/staleness/max"] <= 1 for row in rows)
