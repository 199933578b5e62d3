"""Commands under Ray that are stopped from outside, and scorers that hang in a worker: the same as in one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from omni_portable.trainer.checkpoint import list_checkpoints, read_checkpoint
from tests.e2e.doubles import installed
from tests.e2e.rundirs import logged
from tests.e2e.watching import PATIENCE_S, command, wait_for
from tests.support.processes import assert_gone, lives, named_memory

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

RAY = ("launcher.name=ray", "dataplane.max_staleness=1", "trainer.validate_before=false", "device.threads=1")
ENDING_S = 120.0
"""On a busy machine; of an idle one it takes seconds."""
MODES = {"separate_async": (signal.SIGINT, 130, "interrupted"), "fully_async": (signal.SIGTERM, 143, "by SIGTERM")}
HANGING = "reward.scorers={hanging: {kind: hanging, at: %s}}"


def begin(stack: ExitStack, workshop: Path, folder: Path, *overrides: str, job: bool = True) -> subprocess.Popen[bytes]:
    folder.mkdir()
    argv = [sys.executable, "-m", "omni_portable.cli", "train", str(workshop / "recipe.yaml"), *RAY, *overrides]
    return stack.enter_context(command([*argv, f"trainer.run_dir={folder / 'run'}"], folder / "output", job))


@pytest.fixture
def doubles_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = [str(installed(tmp_path / "plugins")), os.getcwd(), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


def test_runs_that_are_stopped_leave_whole_checkpoints_and_nothing_else(
    workshop: Path, doubles_elsewhere: None, tmp_path: Path
) -> None:
    """Both with a cluster of their own. Rewards of the second hang, which holds nothing up."""
    own = {"separate_async": "reward.timeout_s=1000", "fully_async": HANGING % "step-3/"}
    with ExitStack() as stack:
        runs = {
            mode: begin(
                stack,
                workshop,
                tmp_path / mode,
                f"trainer.mode={mode}",
                "trainer.total_steps=100000",
                "reward.timeout_s=1000",
                own[mode],
            )
            for mode in MODES
        }
        training, hanging = (tmp_path / mode / "run" for mode in MODES)
        said = hanging / "logs" / "reward-0.log"
        moments = (lambda: logged(training) >= 2, lambda: said.is_file() and "hanging" in said.read_text())
        for run, moment in zip(runs.values(), moments, strict=True):
            wait_for(
                lambda run=run, moment=moment: moment() or run.poll() is not None, "a step, or a scorer that hangs"
            )
        families = {mode: psutil.Process(run.pid).children(recursive=True) for mode, run in runs.items()}
        assert all("raylet" in [p.name() for p in family if lives(p)] for family in families.values())
        memory = {path for family in families.values() for process in family for path in named_memory(process)}
        for mode, run in runs.items():
            if MODES[mode][0] is signal.SIGINT:
                os.killpg(run.pid, signal.SIGINT)  # a terminal sends Ctrl-C to all processes of the job
            else:
                run.send_signal(MODES[mode][0])
        for mode, run in runs.items():
            _, code, words = MODES[mode]
            output = tmp_path / mode / "output"
            try:
                assert run.wait(ENDING_S) == code, output.read_text()
            except subprocess.TimeoutExpired:
                pytest.fail(f"{mode} still runs:\n{output.read_text()}")
            assert words in output.read_text()
            assert "trainer.resume=auto" in output.read_text()
            assert "Traceback" not in output.read_text()
            assert_gone(families[mode])
            checkpoints = list_checkpoints(tmp_path / mode / "run" / "checkpoints")
            assert checkpoints
            for folder in checkpoints:
                read_checkpoint(folder)
    assert [path for path in memory if os.path.exists(path)] == []


def test_a_scorer_that_hangs_in_a_worker_costs_the_groups_it_was_asked_for(
    workshop: Path, doubles_elsewhere: None, tmp_path: Path
) -> None:
    """A scorer is asked for one group at a time here. The run goes on with the others, and ends although one hangs."""
    given = ("trainer.mode=separate_async", "trainer.total_steps=3", "reward.timeout_s=2", "reward.on_error=drop_group")
    with ExitStack() as stack:
        run = begin(stack, workshop, tmp_path / "it", *given, HANGING % "step-2/00001", "rollout.max_num_seqs=2")
        code = run.wait(PATIENCE_S)
    assert code == 0, (tmp_path / "it" / "output").read_text()
    rows = [json.loads(line) for line in (tmp_path / "it" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {row["step"]: (row["reward/groups"], row["reward/dropped_groups"]) for row in rows} == {
        1: (2, 0),
        2: (1, 1),
        3: (2, 0),
    }
    assert "hanging" in (tmp_path / "it" / "run" / "logs" / "reward-0.log").read_text()
