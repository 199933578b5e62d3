"""Starts worker processes, waits for their answers, and leaves none behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import Device
from omni_portable.contracts.errors import DeviceError

TIMEOUT_S = 180.0
"""Limit of a worker, start of the interpreter and imports included."""


@dataclass(frozen=True)
class Task:
    """One worker: what it does, by its name in `worker.TASKS`, and the arguments, plain JSON data."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a worker said: its answer, or the error of the device layer (the other is empty)."""

    values: Mapping[str, Any]
    error: str = ""


def run_workers(
    tasks: Sequence[Task], device: Device, work: Path, timeout_s: float = TIMEOUT_S, wait_for: int | None = None
) -> list[Answer]:
    """Run all tasks at once, one process each, with the device's environment; answers in order.

    Args:
        work: folder for answers and messages.
        wait_for: return when the first `wait_for` tasks have answered (the others are ended); None: all of them.

    Raises:
        DeviceError: a worker crashed, or did not answer in time; the message ends with what it said last.
    """
    run = work / f"workers-{time.monotonic_ns()}"
    run.mkdir(parents=True)
    waited = tasks if wait_for is None else tasks[:wait_for]
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        processes = [stack.enter_context(_Worker(task, rank, device, run)) for rank, task in enumerate(tasks)]
        return [worker.answer(deadline) for worker, _ in zip(processes, waited, strict=False)]


class _Worker:
    """A process that is ended with its context."""

    def __init__(self, task: Task, rank: int, device: Device, folder: Path) -> None:
        self._name = f"{task.name} (process {rank})"
        self._result, self._log = folder / f"{rank}.json", folder / f"{rank}.log"
        command = [sys.executable, "-P", "-m", "omni_portable.conformance.worker", task.name]
        # The caller's own values win, as they do for a run.
        environment = device.environment("actor") | dict(os.environ) | {"LOCAL_RANK": str(rank)}
        with open(self._log, "wb") as log:
            # In a session of its own: Ctrl-C is answered here, once.
            self._process = subprocess.Popen(
                [*command, json.dumps(dict(task.arguments)), str(self._result)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def answer(self, deadline: float) -> Answer:
        try:
            status = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise DeviceError(f"{self._name} did not answer in time; it said last: {self._last_words()}") from error
        if status != 0 or not self._result.is_file():
            raise DeviceError(f"{self._name} ended with status {status}; it said last: {self._last_words()}")
        found = json.loads(self._result.read_text(encoding="utf-8"))
        return Answer(found.get("answer", {}), found.get("error", ""))

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "nothing"
