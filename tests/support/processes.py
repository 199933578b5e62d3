"""Which processes still live, and what they hold; a process may end between any two questions about it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

LIMIT_S = 30.0


def lives(process: psutil.Process | int) -> bool:
    """Is it there, and no zombie that only waits for its parent to ask?"""
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    return False


def assert_gone(processes: Iterable[psutil.Process | int], within_s: float = LIMIT_S) -> None:
    """All of them end in time."""
    deadline = time.monotonic() + within_s
    left = list(processes)
    while left := [process for process in left if lives(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def named_memory(process: psutil.Process | int) -> set[str]:
    """Files with a name in /dev/shm that it maps."""
    pid = process if isinstance(process, int) else process.pid
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    mapped = {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}
    return {path for path in mapped if not path.endswith("(deleted)")}


def hear_signals() -> None:
    """As a terminal starts a command. Tests in the background of a script, or under nohup, have Ctrl-C or SIGHUP
    ignored, and what they start would inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
