"""SIGKILL at random moments, then --resume: the same history and the same weights as a run that nobody killed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_portable.trainer.checkpoint import list_checkpoints, read_checkpoint
from tests.e2e.processes import Command, start
from tests.e2e.rundirs import checkpoints, differences, equal_tensors, metrics, validation_scores

STEPS = 4
COMMON = (f"trainer.total_steps={STEPS}", "trainer.save_interval=2", "trainer.validate_interval=2")
VARIANTS = {
    "full": (*COMMON, "algorithm.window_mode=random", "algorithm.window_size=2", "algorithm.stochastic_steps=[]"),
    "lora_ema": (*COMMON, "model.lora.rank=4", "actor.ema_decay=0.5", "actor.mini_batch_size=2", "actor.epochs=2"),
}


def logged(run_dir: Path) -> int:
    """Rows of metrics.jsonl so far, a torn one included."""
    path = run_dir / "metrics.jsonl"
    return path.read_text(errors="replace").count('"step"') if path.is_file() else 0


def row(number: int) -> Callable[[Path], bool]:
    return lambda run_dir: logged(run_dir) >= number


def writing(step: int) -> Callable[[Path], bool]:
    """A checkpoint is half written."""
    return lambda run_dir: any((run_dir / "checkpoints").glob(f".writing-step_{step:06d}/*"))


def locked(run_dir: Path) -> bool:
    return (run_dir / "run.lock").is_file()


MOMENTS: dict[str, list[tuple[str, Callable[[Path], bool], float]]] = {
    "full": [
        ("while the checkpoint of step 2 is written", writing(2), 0.0),
        ("some time after step 2", row(3), 0.6),
        ("while the checkpoint of step 4 is written", writing(4), 0.02),
    ],
    "lora_ema": [
        ("at some time of the start", locked, 1.0),
        ("some time after step 1", row(2), 0.6),
        ("some time after step 3", row(4), 0.3),
    ],
}
"""What the killer waits for, and the longest random delay after it, in seconds."""


@pytest.mark.parametrize("name", VARIANTS)
def test_a_killed_run_ends_like_one_that_was_not(name: str, workshop: Path, train, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    outcome = train(whole, *VARIANTS[name])
    assert outcome.code == 0, outcome.err
    seed = time.time_ns()
    print(f"delays drawn with random.Random({seed})")
    delays = random.Random(seed)

    def begin(attempt: int) -> Command:
        argv = ("train", workshop / "recipe.yaml", "--resume", f"trainer.run_dir={broken}", *VARIANTS[name])
        return start(tmp_path / f"attempt{attempt}.log", *argv)

    killed = 0
    for attempt, (what, moment, longest) in enumerate(MOMENTS[name]):
        command = begin(attempt)
        if command.wait_for(lambda moment=moment: moment(broken), what):
            time.sleep(delays.uniform(0.0, longest))
        killed += command.running
        command.kill()
        for folder in list_checkpoints(broken / "checkpoints"):
            read_checkpoint(folder)  # whatever has a checkpoint's name is whole
    assert killed >= 2, "the killer came too late; make the run longer"

    last = begin(99)
    assert last.wait() == 0, last.output()
    assert differences(metrics(whole), metrics(broken)) == []
    assert validation_scores(whole) == validation_scores(broken)
    assert equal_tensors(whole / "export", broken / "export")
    assert checkpoints(whole) == checkpoints(broken)
    final = f"checkpoints/step_{STEPS:06d}/actor"
    assert equal_tensors(whole / final, broken / final), "optimizer and averages included"


def test_a_second_run_in_the_same_directory_is_refused_while_the_first_goes_on(
    workshop: Path, train, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    first = start(
        tmp_path / "first.log", "train", workshop / "recipe.yaml", f"trainer.run_dir={run_dir}", "trainer.total_steps=2"
    )
    assert first.wait_for(lambda: locked(run_dir) and (run_dir / "run.lock").read_text() != "", "the lock")
    first.signal(signal.SIGSTOP)
    try:
        for resume in ("never", "auto"):
            second = train(run_dir, "trainer.total_steps=2", f"trainer.resume={resume}")
            assert second.code == 1
            assert f"{run_dir} is in use by another run (process {first.pid})" in second.err
    finally:
        first.signal(signal.SIGCONT)
    assert first.wait() == 0, first.output()
    assert sorted(metrics(run_dir)) == [0, 1, 2]


def test_ctrl_c_says_how_to_go_on(workshop: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = start(
        tmp_path / "log", "train", workshop / "recipe.yaml", f"trainer.run_dir={run_dir}", "trainer.total_steps=50"
    )
    assert command.wait_for(lambda: bool(list_checkpoints(run_dir / "checkpoints")), "a checkpoint")
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    assert "interrupted" in command.output()
    assert "trainer.resume=auto" in command.output()
    assert "Traceback" not in command.output()
    for folder in list_checkpoints(run_dir / "checkpoints"):
        read_checkpoint(folder)
