"""The ranks' processes as the driver sees them: start, command all, notice who died, stop all."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from omni_backends.training.fsdp2.channel import Channel
from omni_backends.training.fsdp2.failure import Failure, RankError, died
from omni_backends.training.fsdp2.process import RankSpec, rank_main
from omni_portable.contracts.errors import LifecycleError

GRACE_S = 5.0
"""How long the others may take to answer once a rank has failed; those that wait for it in a collective never will."""
STOP_S = 5.0
"""How long a process may take to end when it is asked to."""


class Ranks:
    """Processes that work in step.

    A command goes to all of them. If one dies, or fails while the others cannot go on without it, all are stopped at
    once and the error says which it was and why; nothing waits for the timeout of a collective.

    Args:
        engine: name for messages.
        spec: what each rank is built from; its `init_method` is set here.
        count: processes.

    Raises:
        RankError: a rank died while it started, or failed with an exception that is none of ours.
        OmniPortableError: what the ranks raised while they were built.
    """

    def __init__(self, engine: str, spec: RankSpec, count: int) -> None:
        self._engine, self._count = engine, count
        folder = tempfile.mkdtemp(prefix="omni-portable-ranks-")
        spec = replace(spec, init_method=f"file://{Path(folder) / 'store'}")
        context = multiprocessing.get_context("spawn")
        self._channels: list[Channel] = []
        self._processes: list[BaseProcess] = []
        self._closer = weakref.finalize(self, _stop, self._processes, self._channels, folder)
        self._broken = ""
        for rank in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=rank_main,
                args=(spec, rank, theirs),
                name=f"{engine}-rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._channels.append(Channel(mine))
            self._processes.append(process)
        self.facts = self._collect("start")

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid or 0 for process in self._processes]

    def call(self, method: str, arguments: Sequence[Mapping[str, Any]] | None = None, **shared: Any) -> list[Any]:
        """Run a method of every rank; results by rank.

        Args:
            arguments: one mapping per rank, beside what all are given alike.

        Raises:
            LifecycleError: the ranks were stopped before.
            RankError: a rank died, or failed with an exception that is none of ours.
            OmniPortableError: what the rank raised. If all ranks refused alike they go on, else they are stopped.
        """
        if self._broken:
            raise LifecycleError(
                f"train engine '{self._engine}' cannot {method}: its ranks were stopped because {self._broken}",
                remedy="continue from the last checkpoint with trainer.resume=auto",
            )
        own = arguments or [{}] * self._count
        for rank, channel in enumerate(self._channels):
            try:
                channel.send((method, {**shared, **own[rank]}))
            except OSError:
                self._fail(self._dead(rank, method))
            except BaseException as error:
                self._break(f"'{method}' could not be sent: {error}")
                raise
        return self._collect(method)

    def close(self) -> None:
        """Ask all ranks to end; those that do not are killed."""
        if not self._broken:
            self._broken = "the engine was closed"
            for channel in self._channels:
                try:
                    channel.send(None)
                except OSError:  # it is gone already
                    continue
            _wait_for(self._processes, STOP_S)
        self._closer()

    def _collect(self, what: str) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline: float | None = None
        try:
            while len(answers) < self._count:
                waiting = [rank for rank in range(self._count) if rank not in answers]
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = wait([self._channels[rank].connection for rank in waiting], left)
                if not ready:
                    break
                for rank in waiting:
                    if self._channels[rank].connection in ready:
                        answers[rank] = self._receive(rank, what)
                        if isinstance(answers[rank], Failure) and deadline is None:
                            deadline = time.monotonic() + GRACE_S
        except RankError as error:
            self._fail(error, answers, what)
        except BaseException:
            self._break("a command was interrupted")
            raise
        failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, Failure)}
        if failures:
            self._refuse(failures, what)
        return [answers[rank][1] for rank in range(self._count)]

    def _receive(self, rank: int, what: str) -> Any:
        try:
            return self._channels[rank].receive()
        except (EOFError, OSError):
            raise self._dead(rank, what) from None

    def _refuse(self, failures: Mapping[int, Failure], what: str) -> None:
        """Raise what the lowest rank raised; all ranks of one mind are left alone, they are still in step."""
        rank = min(failures)
        error = failures[rank].error(self._who(rank), what)
        alike = len(failures) == self._count and len({failure.kind for failure in failures.values()}) == 1
        if what == "start" or not alike or isinstance(error, RankError) or what in UNSAFE:
            self._break(f"{self._who(rank)} failed to {what}: {failures[rank].problem}")
        raise error

    def _fail(self, error: RankError, answers: Mapping[int, Any] | None = None, what: str = "") -> None:
        """Stop everyone. A rank that had already said what went wrong explains the death of another."""
        self._break(error.problem)
        for rank, answer in (answers or {}).items():
            if isinstance(answer, Failure):
                raise answer.error(self._who(rank), what) from error
        raise error

    def _dead(self, rank: int, what: str) -> RankError:
        self._processes[rank].join(1.0)
        return died(self._who(rank), what, self._processes[rank].exitcode)

    def _break(self, why: str) -> None:
        self._broken = why
        self._closer()

    def _who(self, rank: int) -> str:
        return f"rank {rank} of {self._count} (pid {self._processes[rank].pid}) of train engine '{self._engine}'"


UNSAFE = ("accumulate", "step", "load")
"""Commands that leave a rank in an unknown state when they fail half-way."""


def _stop(processes: list[BaseProcess], channels: list[Channel], folder: str) -> None:
    """End what still runs, now; a function of its own so that a finalizer may call it."""
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
    for channel in channels:
        channel.close()
    shutil.rmtree(folder, ignore_errors=True)


def _wait_for(processes: Sequence[BaseProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
