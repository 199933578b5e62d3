"""Runs whose engines live in processes of their own, stopped from outside: the same exit codes and messages as for the
native engine, and nothing stays behind. Runs that share the machine do not get into each other's way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from omni_backends.rollout.external.guard import VARIABLE
from tests.e2e.settings import EIGHT
from tests.support.engines import require_installed
from tests.support.processes import hear_signals, lives
from tests.support.sync_worker import ROOT

require_installed("vllm", "vllm_omni")

PATIENCE_S = 900.0
ENDING_S = 120.0
"""Most of it on a busy machine."""
COMMON = (*EIGHT, "trainer.total_steps=100000", "trainer.save_interval=0")
RECIPES = {
    "vllm": ("qwen3/grpo_letters_tiny", "rollout.engine=vllm", "actor.mini_batch_size=8"),
    "vllm_tensor_parallel": (
        "qwen3/grpo_letters_tiny",
        "rollout.engine=vllm",
        "actor.mini_batch_size=8",
        "rollout.options.tensor_parallel_size=2",
    ),
    "vllm_omni": ("sd3/flow_grpo_ocr_tiny", "rollout.engine=vllm_omni", "rollout.max_num_seqs=8"),
}


@dataclass
class Run:
    """A command with what it leaves where: its output, its run directory, its temporary folder."""

    process: subprocess.Popen[bytes]
    folder: Path
    temporary: Path

    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    def training(self) -> bool:
        metrics = self.folder / "run" / "metrics.jsonl"
        return metrics.is_file() and metrics.read_text(errors="replace").count('"step"') >= 2

    def starting(self) -> bool:
        """An engine's process is there, and has begun to load."""
        return any(
            VARIABLE in _environment(child) and child.create_time() < time.time() - 4.0 for child in self.family()
        )

    def left(self) -> list[str]:
        """What is in the temporary folder, but for a number that onnxruntime (of the reward) keeps there."""
        return [name for name in os.listdir(self.temporary) if name != ".ses"]

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


@contextmanager
def started(folder: Path, names: Iterable[str]) -> Iterator[dict[str, Run]]:
    made = {name: _start(folder / name, *RECIPES[name]) for name in names}
    try:
        yield made
    finally:
        for run in made.values():
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
            shutil.rmtree(run.temporary, ignore_errors=True)


def _start(folder: Path, recipe: str, *overrides: str) -> Run:
    folder.mkdir()
    temporary = Path(tempfile.mkdtemp(prefix="stop-", dir="/tmp"))
    command = [sys.executable, "-m", "omni_portable.cli", "train", recipe, *COMMON, *overrides]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [*command, f"trainer.run_dir={folder / 'run'}"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # as a terminal's foreground job, also where this one is in the background
            preexec_fn=hear_signals,
        )
    return Run(process, folder, temporary)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize(
    ("moment", "names", "number", "code", "words"),
    [
        ("training", ("vllm", "vllm_omni"), signal.SIGTERM, 143, "stopped by SIGTERM"),
        ("training", ("vllm",), signal.SIGINT, 130, "interrupted"),
        ("training", ("vllm_omni",), signal.SIGINT, 130, "interrupted"),
        ("training", ("vllm_tensor_parallel",), signal.SIGKILL, -9, ""),
        ("training", ("vllm_omni",), signal.SIGKILL, -9, ""),
        ("starting", ("vllm",), signal.SIGTERM, 143, "stopped by SIGTERM"),
        ("starting", ("vllm_tensor_parallel", "vllm_omni"), signal.SIGKILL, -9, ""),
    ],
)
def test_a_run_that_is_stopped_takes_its_engine_with_it(
    tmp_path: Path, moment: str, names: tuple[str, ...], number: signal.Signals, code: int, words: str
) -> None:
    with started(tmp_path, names) as runs:
        _stop(runs, moment, number, code, words)


def _stop(runs: dict[str, Run], moment: str, number: signal.Signals, code: int, words: str) -> None:
    for name, run in runs.items():
        ready = _wait(lambda run=run: getattr(run, moment)() or run.process.poll() is not None, PATIENCE_S)  # type: ignore[misc]
        assert ready, f"{name}:\n{run.output()}"
        assert run.process.poll() is None, f"{name}:\n{run.output()}"
    families = {name: run.family() for name, run in runs.items()}
    shared = {name: {path for process in family for path in _shared(process)} for name, family in families.items()}
    for run in runs.values():
        if number is signal.SIGINT:
            os.killpg(run.process.pid, number)  # a terminal sends Ctrl-C to all processes of the job
        else:
            run.process.send_signal(number)
    for name, run in runs.items():
        assert _wait(lambda run=run: run.process.poll() is not None, ENDING_S), f"{name}:\n{run.output()}"  # type: ignore[misc]
        assert run.process.returncode == code, f"{name}:\n{run.output()}"
        assert words in run.output(), name
        assert "Traceback" not in run.output(), f"{name}:\n{run.output()}"
        left = [process for process in families[name] if not _wait(lambda p=process: not lives(p), ENDING_S)]  # type: ignore[misc]
        assert not left, f"{name}: {left}"
        assert _wait(lambda run=run: not run.left(), ENDING_S), (name, run.left())  # type: ignore[misc]
        assert _wait(lambda name=name: not any(map(os.path.exists, shared[name])), ENDING_S), (name, shared[name])  # type: ignore[misc]


def _shared(process: psutil.Process) -> set[str]:
    """Files in /dev/shm, with a name, that it maps."""
    try:
        mapped = {
            line.split(maxsplit=5)[5]
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            if "/dev/shm/" in line
        }
    except OSError:
        return set()
    return {path for path in mapped if not path.endswith("(deleted)")}
