"""The command in processes of their own, for what only a process shows: being killed, and holding a lock."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.processes import hear_signals

PATIENCE_S = 180.0

_CONTEXT = multiprocessing.get_context("forkserver")
# The server imports once, computes nothing, and forks one child per command: a start costs a fork instead of imports.
_CONTEXT.set_forkserver_preload(
    [
        "omni_portable.cli",
        "omni_portable.trainer.run",
        "omni_portable.models.sd3.adapter",
        "omni_portable.reward.jpeg_scorer",
        "omni_backends.training.single.engine",
        "omni_backends.rollout.native.engine",
    ]
)


def _child(argv: list[str], log: str) -> None:
    hear_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    from omni_portable.cli import main

    sys.argv = ["omni-portable", *argv]
    sys.exit(main())


@dataclass
class Command:
    """A running command; its output goes to `log`."""

    process: BaseProcess
    log: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def kill(self) -> None:
        """SIGKILL: no handler, no cleanup."""
        self.process.kill()
        self.process.join()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Exit code, once it has ended."""
        self.process.join(PATIENCE_S)
        assert self.process.exitcode is not None, f"still running:\n{self.output()}"
        return self.process.exitcode

    def wait_for(self, condition: Callable[[], bool], what: str) -> bool:
        """True as soon as the condition holds; False when the command ended before it did."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if condition():
                return True
            if not self.running:
                return condition()
            time.sleep(0.001)
        self.kill()
        raise AssertionError(f"waited {PATIENCE_S:g} seconds for {what}:\n{self.output()}")


def start(log: Path, *argv: object) -> Command:
    """Start `omni-portable ARGV`."""
    process = _CONTEXT.Process(target=_child, args=([str(argument) for argument in argv], str(log)), daemon=True)
    process.start()
    return Command(process, log)
