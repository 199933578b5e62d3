"""The packaged recipe with its actor in two Ray processes, on the device of one of which rollout takes turns with it:
one is killed, and the run continued."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.e2e.rundirs import metrics
from tests.e2e.test_e2e_fsdp2 import TINY, same
from tests.e2e.test_e2e_ray import killing
from tests.e2e.watching import descendants

pytest.importorskip("ray")
pytestmark = pytest.mark.ray
LIMIT_S = 30.0
RANKS = ("launcher.name=ray", "actor.engine=fsdp2", "actor.world_size=2", "launcher.options.rollout_devices=0")


def test_the_recipe_with_ranks_in_ray_of_which_one_is_killed(cluster, cli, workshop: Path, tmp_path: Path):
    def run(name: str, *overrides: str):
        data = (
            f"model.path={workshop}/sd3",
            f"data.train={workshop}/train.jsonl",
            f"trainer.run_dir={tmp_path}/{name}",
        )
        return cli("train", "sd3/flow_grpo_ocr_tiny", *TINY, *data, *overrides)

    whole = run("whole", "trainer.total_steps=3")
    assert whole.code == 0, whole.err
    folder = tmp_path / "ranks"
    with killing(folder, ("actor-1", 2)) as killed:
        outcome = run("ranks", *RANKS, "trainer.total_steps=400")
    assert killed == ["actor-1"]
    assert outcome.code == 1, outcome.err
    assert "rank 1 of 2 ('actor-1', pid " in outcome.err
    log = (folder / "log.txt").read_text()
    assert "2 ranks meet at tcp://127.0.0.1:" in log
    assert {"actor-0.log", "actor-1.log", "rollout-0.log"} <= {path.name for path in (folder / "logs").iterdir()}
    done = max(metrics(folder))
    outcome = run("ranks", *RANKS, f"trainer.total_steps={max(done, 2) + 1}", "trainer.resume=auto")
    assert outcome.code == 0, outcome.err
    found = metrics(folder)
    same({step: row for step, row in found.items() if step <= 3}, metrics(tmp_path / "whole"))
    assert found[1]["rollout_corr/ratio_exact_one"] == 1.0
    assert_no_ranks_left()


def assert_no_ranks_left() -> None:
    deadline = time.monotonic() + LIMIT_S
    while descendants(os.getpid(), "RankHost"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
