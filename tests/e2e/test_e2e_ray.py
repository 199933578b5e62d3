"""Whole runs with rollout and rewards in processes of their own, some of which are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMON, STEPS
from tests.e2e.letters import train_letters
from tests.e2e.rundirs import differences, equal_tensors, logged, metrics, validation_scores, worker
from tests.e2e.teachers import assert_alike, distilling
from tests.e2e.watching import PATIENCE_S, wait_for

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

RAY = (*COMMON, "launcher.name=ray")


@contextmanager
def killing(run_dir: Path, *victims: tuple[str, int]) -> Iterator[list[str]]:
    """While inside, SIGKILL workers: (label, rows of metrics.jsonl to wait for). Gives the labels of the killed."""
    killed: list[str] = []

    def kill() -> None:
        for label, rows in victims:
            wait_for(lambda rows=rows: logged(run_dir) >= rows, f"row {rows}")
            os.kill(worker(run_dir, label), signal.SIGKILL)
            killed.append(label)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield killed
    thread.join(PATIENCE_S)


def test_sync_is_bit_identical_to_one_process_even_when_workers_are_killed(
    cluster, whole: Path, train, tmp_path: Path
) -> None:
    """Row 1 is logged before anything is killed; whatever is lost then is drawn and scored again."""
    run_dir = tmp_path / "run"
    with killing(run_dir, ("rollout-0", 2), ("reward-0", 3)) as killed:
        outcome = train(run_dir, *RAY)
    assert outcome.code == 0, outcome.err
    assert killed == ["rollout-0", "reward-0"]
    assert differences(metrics(whole), metrics(run_dir)) == []
    assert validation_scores(whole) == validation_scores(run_dir)
    assert equal_tensors(whole / "export", run_dir / "export")
    log = (run_dir / "log.txt").read_text()
    for label in killed:
        assert f"the process of '{label}' is gone" in log
        assert log.count(f"'{label}' runs in process") == 2
        assert (run_dir / "logs" / f"{label}.log").read_text().count(f"'{label}' is ready in process") == 2


def test_separate_async_loses_and_repeats_nothing_when_workers_are_killed(cluster, train, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    mode = ("trainer.mode=separate_async", "dataplane.max_staleness=1", "rollout.max_num_seqs=2")
    with killing(run_dir, ("rollout-0", 2), ("reward-0", 3)) as killed:
        outcome = train(run_dir, *RAY, *mode)
    assert outcome.code == 0, outcome.err
    assert killed == ["rollout-0", "reward-0"]
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][1:]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [(row["reward/groups"], row["reward/samples"], row["reward/dropped_groups"]) for row in rows] == [
        (2.0, 4.0, 0.0)
    ] * STEPS
    assert [row["policy/version"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["replay/staleness/max"] <= 1 for row in rows)
    assert rows[-1]["replay/evicted_groups"] == 0
    assert rows[-1]["perf/rollout/restarts"] == 1


def test_a_killed_teacher_loses_nothing(cluster, workshop: Path, train, tmp_path: Path) -> None:
    """Two teachers in processes of their own, one of which is killed, against teachers in the train engine."""
    given = (*distilling(workshop), f"trainer.total_steps={STEPS}", "trainer.save_interval=0")
    outcome = train(tmp_path / "engine", *given)
    assert outcome.code == 0, outcome.err
    run_dir = tmp_path / "pool"
    with killing(run_dir, ("teacher-0", 1)) as killed:
        outcome = train(run_dir, *given, "launcher.name=ray", "teacher.placement=pool")
    assert outcome.code == 0, outcome.err
    assert killed == ["teacher-0"]
    assert_alike(tmp_path / "engine", run_dir)
    log = (run_dir / "log.txt").read_text()
    assert "the process of 'teacher-0' is gone" in log
    assert [log.count(f"'teacher-{at}' runs in process") for at in (0, 1)] == [2, 1], "one for each teacher"
    assert all(row["teacher/failed_samples"] == 0 for row in metrics(run_dir).values())


def test_groups_wait_in_a_transfer_queue_while_the_actor_trains(cluster, train, tmp_path: Path) -> None:
    pytest.importorskip("transfer_queue")
    run_dir = tmp_path / "run"
    mode = ("trainer.mode=separate_async", "dataplane.max_staleness=1", "dataplane.name=transferqueue")
    outcome = train(run_dir, *RAY, *mode)
    assert outcome.code == 0, outcome.err
    rows = [row for step, row in metrics(run_dir).items() if step]
    assert len(rows) == STEPS
    assert [(row["reward/groups"], row["reward/samples"]) for row in rows] == [(2.0, 4.0)] * STEPS
    assert all(row["replay/staleness/max"] <= 1 for row in rows)
    assert all(row["actor/optimizer_steps"] == 1 for row in rows)
    assert (run_dir / "export").is_dir()


def test_devices_of_the_trainer_are_lent_to_rollout_in_another_process(cluster, cli, tmp_path: Path) -> None:
    hybrid = ("trainer.hybrid.enabled=true", "trainer.hybrid.actor_sleeps=[optimizer]", "trainer.hybrid.sleep_level=2")
    mode = ("trainer.mode=fully_async", "dataplane.max_staleness=2", "launcher.name=ray")
    rows = train_letters(cli, tmp_path / "run", *mode, *hybrid)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert sum(row["hybrid/lends"] for row in rows) > 0
    assert sum(row["hybrid/requests"] for row in rows) > 0, "the lent engine drew"
    assert all(row["hybrid/out"] == row["hybrid/lost"] == row["hybrid/failed_updates"] == 0 for row in rows)
    assert all((row["reward/groups"], row["reward/samples"]) == (4, 16) for row in rows), "nothing is lost"
    assert rows[-1]["replay/evicted_groups"] == sum(row["reward/dropped_groups"] for row in rows) == 0
    assert all(row["replay/staleness/max"] <= 2 for row in rows)
    assert [row["policy/version"] for row in rows] == [1, 2, 3, 4]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "'rollout-0' runs in process" in log
    assert "1 replicas are lent to rollout" in log


def test_a_killed_trainer_is_resumed(cluster, whole: Path, workshop: Path, tmp_path: Path) -> None:
    """It joins the cluster of this test as somebody else's; its workers end with it."""
    run_dir = tmp_path / "run"
    argv = [sys.executable, "-m", "omni_portable.cli", "train", str(workshop / "recipe.yaml"), "--resume"]
    argv += [*RAY, f"trainer.run_dir={run_dir}", f"launcher.options.address={cluster.address}"]
    with open(tmp_path / "output", "w") as output:
        first = subprocess.Popen(argv, stdout=output, stderr=output)
        wait_for(lambda: logged(run_dir) >= 4 or first.poll() is not None, "step 3")
        first.kill()
        assert first.wait() == -signal.SIGKILL, (tmp_path / "output").read_text()
        workers = re.findall(r"' runs in process (\d+)", (run_dir / "log.txt").read_text())
        assert len(workers) == 2
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers to end")
        second = subprocess.run(argv, stdout=output, stderr=output, check=False)
    assert second.returncode == 0, (tmp_path / "output").read_text()
    assert "continuing" in (run_dir / "log.txt").read_text()
    assert differences(metrics(whole), metrics(run_dir)) == []
    assert equal_tensors(whole / "export", run_dir / "export")
