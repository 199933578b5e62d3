"""SIGKILL at random moments, then --resume: the same history and the same weights as a run that nobody killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("numbers", "code", "words"),
    [
        ((signal.SIGINT,), 130, "interrupted"),
        ((signal.SIGINT, signal.SIGINT), 130, "interrupted"),
        ((signal.SIGTERM,), 143, "stopped by SIGTERM"),
        ((signal.SIGTERM, signal.SIGINT, signal.SIGTERM), 143, "stopped by SIGTERM"),
        ((signal.SIGHUP,), 129, "stopped by SIGHUP"),
    ],
)
def test_a_signal_says_how_to_go_on(
    numbers: tuple[signal.Signals, ...], code: int, words: str, workshop: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    command = start(
        tmp_path / "log", "train", workshop / "recipe.yaml", f"trainer.run_dir={run_dir}", "trainer.total_steps=50"
    )
    assert command.wait_for(lambda: bool(list_checkpoints(run_dir / "checkpoints")), "a checkpoint")
    for number in numbers:
        if command.running:
            command.signal(number)
            time.sleep(0.05)
    # After its message a further signal ends the process by itself, which shells show as the same code.
    assert command.wait() in (code, *(-number for number in numbers[1:]))
    assert words in command.output()
    assert "trainer.resume=auto" in command.output()
    assert "Traceback" not in command.output()
    log = (run_dir / "log.txt").read_text()
    assert "the run stopped" in log
    if signal.SIGINT not in numbers:
        assert f"{numbers[0].name} arrived" in log
    for folder in list_checkpoints(run_dir / "checkpoints"):
        read_checkpoint(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_scorer_that_hangs_does_not_hold_a_signal_up(number: signal.Signals, workshop: Path, tmp_path: Path) -> None:
    code = (
        "import sys, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from omni_portable.reward import jpeg_scorer\n"
        "def hang(self, batch):\n"
        "    print('hanging', flush=True)\n"
        "    threading.Event().wait()\n"
        "for name in dir(jpeg_scorer):\n"
        "    if name.startswith('Jpeg') and name.endswith('ility'):\n"
        "        getattr(jpeg_scorer, name).score = hang\n"
        "from omni_portable.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "train", str(workshop / "recipe.yaml"), f"trainer.run_dir={tmp_path / 'r'}"]
    process = subprocess.Popen(
        [*command, "trainer.validate_before=false", "reward.timeout_s=1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        while "hanging" not in (line := process.stdout.readline()):
            assert line, "the run ended before it scored"
        process.send_signal(number)
        said, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "trainer.resume=auto" in said
    assert "Traceback" not in said


def test_a_changed_prompt_file_is_refused_and_the_earlier_one_goes_on(workshop: Path, train, tmp_path: Path) -> None:
    prompts, run_dir = tmp_path / "own.jsonl", tmp_path / "run"
    before = (workshop / "train.jsonl").read_text()
    prompts.write_text(before)
    own = f"data.train={prompts}"
    assert train(run_dir, own, "trainer.total_steps=1").code == 0
    prompts.write_text(before.replace("map", "mop"))
    outcome = train(run_dir, own, "trainer.total_steps=2", "trainer.resume=auto")
    assert outcome.code == 1
    assert f"other contents of data.train ({prompts})" in outcome.err
    prompts.write_text(before)
    assert train(run_dir, own, "trainer.total_steps=2", "trainer.resume=auto").code == 0
    outcome = train(run_dir, own, "trainer.total_steps=1", "trainer.resume=auto")
    assert (outcome.code, "beyond trainer.total_steps=1: 2 steps are done" in outcome.err) == (1, True)
