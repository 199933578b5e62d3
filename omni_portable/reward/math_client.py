"""Asks the process of `math_worker` whether two answers are equal, and does not wait for ever."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import weakref
from queue import Empty, SimpleQueue
from typing import IO

from omni_portable.contracts.errors import RewardError

START_S = 120.0
"""Seconds that the process may take to load its libraries on a busy machine."""
_END = ""


class MathClient:
    """One process, started when it is first needed and replaced after a question that took too long.

    Args:
        timeout_s: seconds for one question.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._stop: weakref.finalize[[subprocess.Popen[str]], MathClient] | None = None

    def equal(self, wanted: str, given: str) -> bool | None:
        """Whether two answers in LaTeX have the same value; None where that could not be found out in time.

        Raises:
            RewardError: the process cannot start, or broke.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"wanted": wanted, "given": given}) + "\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            self.close()
            raise RewardError("the process that compares mathematical answers has ended") from error
        line = self._next(self._timeout_s)
        if line is None:
            self.close()
            return None
        return bool(json.loads(line)["equal"])

    def close(self) -> None:
        """End the process."""
        if self._stop is not None:
            self._stop()
        self._process = None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", "omni_portable.reward.math_worker"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._stop = weakref.finalize(self, _end, self._process)
            assert self._process.stdout is not None
            self._lines = SimpleQueue()
            threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
            if self._next(START_S) is None:
                self.close()
                raise RewardError(
                    f"the process that compares mathematical answers did not start within {START_S:g} seconds",
                    remedy="check the machine's load",
                )
        return self._process

    def _next(self, seconds: float) -> str | None:
        """The next line; None after `seconds`."""
        until = time.monotonic() + seconds
        try:
            line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            return None
        if line == _END:
            self.close()
            raise RewardError(
                "the process that compares mathematical answers has ended", remedy="pip install 'math-verify==0.9.0'"
            )
        return line


def _read(stream: IO[str], lines: SimpleQueue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(_END)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
