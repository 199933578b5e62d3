"""Rollout replicas that take turns with the ranks of the actor on their devices, and one that is killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.rundirs import differences, equal_tensors, metrics, validation_scores
from tests.e2e.test_e2e_ray import killing

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

RANKS = ("actor.engine=fsdp2", "actor.world_size=2", "rollout.max_num_seqs=2", "trainer.total_steps=3")
SHARED = (
    "launcher.name=ray",
    "launcher.options.rollout_devices=0",
    "rollout.replicas=2",
    "rollout.sleep_level=1",
    "trainer.actor_sleeps=[weights,optimizer]",
)


def test_replicas_on_the_devices_of_ranks_draw_what_one_draws_though_one_is_killed(cluster, train, tmp_path: Path):
    """The run that it equals, bit for bit, has one engine in the trainer's process, and nothing of it sleeps."""
    one, run_dir = tmp_path / "one", tmp_path / "run"
    outcome = train(one, *RANKS)
    assert outcome.code == 0, outcome.err
    with killing(run_dir, ("rollout-1", 2)) as killed:
        outcome = train(run_dir, *RANKS, *SHARED)
    assert outcome.code == 0, outcome.err
    assert killed == ["rollout-1"]
    assert differences(metrics(one), metrics(run_dir)) == []
    assert validation_scores(one) == validation_scores(run_dir)
    assert equal_tensors(one / "export", run_dir / "export")
    log = (run_dir / "log.txt").read_text()
    assert "the process of 'rollout-1' is gone" in log
    started = re.findall(r"'((?:actor|rollout)-\d)' runs in process", log)
    assert set(started[:2]) == {"actor-0", "actor-1"}, "replicas come after the ranks"
    assert sorted(started[2:]) == ["rollout-0", "rollout-1", "rollout-1"], "no rank was started again"
    assert "take turns on the devices of its 2 ranks" in (run_dir / "plan.txt").read_text()
