"""Rollout replicas and ranks of the actor by turns on the same devices: one is killed, and the run is continued."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.rundirs import differences, equal_tensors, metrics, validation_scores
from tests.e2e.test_e2e_ray import killing

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

RANKS = ("actor.engine=fsdp2", "actor.world_size=2", "rollout.max_num_seqs=2", "trainer.save_interval=1")
TURNS = ("trainer.actor_sleeps=[weights,optimizer]", "rollout.sleep_level=1")
SHARED = ("launcher.name=ray", "launcher.options.rollout_devices=0", *TURNS)


def training(run_dir: Path) -> dict[int, dict[str, float]]:
    """Metrics without those of validation: the end of the first part was validated, too."""
    rows = metrics(run_dir)
    return {step: {k: v for k, v in row.items() if not k.startswith("validation/")} for step, row in rows.items()}


def test_replicas_on_the_devices_of_ranks_draw_what_one_draws_though_one_is_killed(cluster, train, tmp_path: Path):
    """The reference has one engine in the trainer's process, and never sleeps; the continued run has one replica."""
    one, run_dir = tmp_path / "one", tmp_path / "run"
    outcome = train(one, *RANKS, "trainer.total_steps=4")
    assert outcome.code == 0, outcome.err
    with killing(run_dir, ("rollout-1", 2)) as killed:
        outcome = train(run_dir, *RANKS, *SHARED, "rollout.replicas=2", "trainer.total_steps=3")
    assert outcome.code == 0, outcome.err
    assert killed == ["rollout-1"]
    log = (run_dir / "log.txt").read_text()
    assert "the process of 'rollout-1' is gone" in log
    assert len(re.findall("'actor-[01]' runs in process", log)) == 2, "no rank was started again"
    ranks = [log.index(f"'actor-{rank}' runs in process") for rank in (0, 1)]
    assert max(ranks) < min(log.index(f"'rollout-{replica}' runs in process") for replica in (0, 1))
    assert "take turns on the devices of its 2 ranks" in (run_dir / "plan.txt").read_text()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows[1]["perf/rollout/replicas"] == 2
    more = ("rollout.replicas=1", "trainer.resume=auto", "trainer.total_steps=4")
    outcome = train(run_dir, *RANKS, *SHARED, *more)
    assert outcome.code == 0, outcome.err
    assert differences(*map(training, (one, run_dir))) == []
    assert equal_tensors(one / "export", run_dir / "export")
    assert validation_scores(one).items() <= validation_scores(run_dir).items()
