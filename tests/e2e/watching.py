"""Commands in processes of their own whose end is waited for, and the processes that they started."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.processes import hear_signals

PATIENCE_S = 1200.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} seconds for {what}"
        time.sleep(0.002)


def descendants(pid: int, name: str) -> list[psutil.Process]:
    """Processes below `pid` whose program is called so."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [child] if name in child.name() else []
    return found


@contextmanager
def command(argv: list[str], log: Path, job: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, on no cluster of this process; it and all that it started end here.

    Args:
        job: it leads a group of processes, as a terminal's foreground job does.
    """
    own = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_TOKEN"}
    with open(log, "ab") as output:
        process = subprocess.Popen(
            argv, stdout=output, stderr=output, env=own, start_new_session=job, preexec_fn=hear_signals
        )
    try:
        yield process
    finally:
        left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def ended(process: subprocess.Popen[bytes], log: Path, patience_s: float) -> str:
    """Output of a command that ends with an error in time, without a traceback."""
    try:
        code = process.wait(patience_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it still runs after {patience_s:g} seconds:\n{log.read_text()}")
    said = log.read_text()
    assert code == 1, said
    assert "Traceback" not in said
    return said
