"""A vLLM process of a rollout replica under Ray that is killed while it draws: the run goes on and loses nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.e2e.rundirs import logged, worker
from tests.e2e.settings import EIGHT, VLLM
from tests.e2e.watching import command, descendants
from tests.support.engines import require_installed
from tests.support.processes import assert_gone, lives

require_installed("vllm", "ray")

STEPS = 12
PATIENCE_S = 900.0
RUN = (
    *EIGHT,
    *VLLM,
    "launcher.name=ray",
    "rollout.max_new_tokens=128",
    "rollout.temperature=5.0",
    "actor.mini_batch_size=8",
    f"trainer.total_steps={STEPS}",
    "trainer.save_interval=0",
)


def until(condition: Callable[[], bool], run: psutil.Popen, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert run.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


def test_a_run_goes_on_when_the_engine_of_a_replica_is_killed_while_it_draws(tmp_path: Path) -> None:
    """After a row comes the next rollout. Where the killer was late for it, the replica was replaced, which is as good;
    it tries again then."""
    run_dir, log = tmp_path / "run", tmp_path / "output"
    argv = [sys.executable, "-m", "omni_portable.cli", "train", "qwen3/grpo_letters_tiny", *RUN]
    killed: list[psutil.Process] = []

    def drawn_again() -> int:
        return (run_dir / "logs" / "rollout-0.log").read_text().count("requests are drawn again")

    with command([*argv, f"trainer.run_dir={run_dir}"], log) as run:
        for row in (1, 4, 7):
            until(lambda row=row: logged(run_dir) >= row, run, log)  # type: ignore[misc]
            killed += [one for one in descendants(worker(run_dir, "rollout-0"), "EngineCor") if lives(one)]
            killed[-1].kill()
            until(lambda row=row: logged(run_dir) >= row + 2, run, log)  # type: ignore[misc]
            if drawn_again():
                break
        assert run.wait(PATIENCE_S) == 0, log.read_text()
    assert drawn_again() == 1, "by the engine itself, in the call that lost it"
    assert "Traceback" not in log.read_text()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [(row["reward/groups"], row["reward/samples"], row["reward/dropped_groups"]) for row in rows] == [
        (2, 8, 0)
    ] * STEPS
    assert [row["policy/version"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["rollout_corr/logprob_abs_diff/max"] <= 1e-4 for row in rows), "the successor has the weights"
    assert rows[-1]["perf/rollout/restarts"] == len(killed)
    said = (run_dir / "logs" / "rollout-0.log").read_text()
    assert f"{killed[-1].pid} (killed by SIGKILL)" in said
    assert_gone(killed)
