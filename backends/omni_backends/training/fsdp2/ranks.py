"""The ranks as their driver sees them: start, command all, notice who died, stop all."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from omni_backends.training.fsdp2.children import Children
from omni_backends.training.fsdp2.failure import Failure, RankError, RankTraceback, lost
from omni_backends.training.fsdp2.group import GoneError, Group
from omni_backends.training.fsdp2.process import RankSpec
from omni_backends.training.fsdp2.remote import Placed
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.ranks import RankSpawner

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
        spec: what each rank is built from.
        count: processes.
        spawn: starts them where they belong; None: as children of this process.

    Raises:
        RankError: a rank died while it started, or failed with an exception that is none of ours.
        OmniPortableError: what the ranks raised while they were built.
    """

    def __init__(self, engine: str, spec: RankSpec, count: int, spawn: RankSpawner | None = None) -> None:
        self._engine, self._count, self._broken = engine, count, ""
        self._group: Group = Children(engine, spec, count) if spawn is None else Placed(spawn, engine, spec, count)
        self.facts = self._collect("start")

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return self._group.pids

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
        for rank in range(self._count):
            try:
                self._group.send(rank, (method, {**shared, **own[rank]}))
            except GoneError as gone:
                self._fail(self._dead(rank, method, gone))
            except BaseException as error:
                self._break(f"'{method}' could not be sent: {error}")
                raise
        return self._collect(method)

    def close(self) -> None:
        """Ask all ranks to end; those that do not are killed."""
        if not self._broken:
            self._broken = "the engine was closed"
            for rank in range(self._count):
                try:
                    self._group.send(rank, None)
                except GoneError:  # already
                    continue
            self._group.finish(STOP_S)
        self._group.stop()

    def _collect(self, what: str) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline: float | None = None
        try:
            while len(answers) < self._count:
                waiting = [rank for rank in range(self._count) if rank not in answers]
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = self._group.wait(waiting, left)
                if not ready:
                    break
                for rank in ready:
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
            self._blame_silent([rank for rank in range(self._count) if rank not in answers], failures, what)
            self._refuse(failures, what)
        return [answers[rank][1] for rank in range(self._count)]

    def _receive(self, rank: int, what: str) -> Any:
        try:
            return self._group.receive(rank)
        except GoneError as gone:
            raise self._dead(rank, what, gone) from gone.__cause__

    def _blame_silent(self, silent: Sequence[int], failures: Mapping[int, Failure], what: str) -> None:
        """Where all that failed had waited for others, it is those that still say nothing which hang."""
        if not silent or not all(failure.waited for failure in failures.values()):
            return
        rank = min(failures)
        error = RankError(
            f"{' and '.join(map(self._who, silent))} did not answer '{what}': stopped, hung or cut off. "
            f"{failures[rank].told(self._who(rank), what)}",
            remedy="look for what it wrote last (above, or in its log), and at the machine and network between the "
            "ranks; actor.rank_timeout_s says how long they wait for each other; then continue with "
            "trainer.resume=auto",
        )
        self._break(error.problem)
        raise error from RankTraceback(failures[rank].trace)

    def _refuse(self, failures: Mapping[int, Failure], what: str) -> None:
        """Raise what the lowest rank raised; all ranks of one mind are left alone, they are still in step."""
        rank = min(failures)
        error = failures[rank].error(self._who(rank), what)
        alike = len(failures) == self._count and len({failure.kind for failure in failures.values()}) == 1
        if what == "start" or not alike or isinstance(error, RankError) or what in UNSAFE:
            self._break(f"{self._who(rank)} failed to {what}: {failures[rank].problem}")
        raise error

    def _fail(self, error: RankError, answers: Mapping[int, Any] | None = None, what: str = "") -> None:
        """Stop everyone. An error of ours that another rank had raised before explains the death; any other (a broken
        connection) may as well be its consequence, and is told beside it."""
        self._break(error.problem)
        for rank, answer in (answers or {}).items():
            if not isinstance(answer, Failure):
                continue
            raised = answer.error(self._who(rank), what)
            if not isinstance(raised, RankError):
                raise raised from error
            problem = f"{error.problem}. Before that was known, {answer.told(self._who(rank), what)}"
            raise RankError(problem, remedy=error.remedy, choices=error.choices) from raised.__cause__
        raise error

    def _dead(self, rank: int, what: str, gone: GoneError) -> RankError:
        return lost(self._who(rank), what, gone.how)

    def _break(self, why: str) -> None:
        self._broken = why
        self._group.stop()

    def _who(self, rank: int) -> str:
        return f"rank {rank} of {self._count} ({self._group.describe(rank)}) of train engine '{self._engine}'"


UNSAFE = ("accumulate", "step", "load")
"""Commands that leave a rank in an unknown state when they fail half-way."""
