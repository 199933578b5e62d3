"""Calling a scorer with a deadline: one that hangs is left behind and replaced; the caller is never held up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omni_portable.contracts.reward import RewardSample, Scorer


@dataclass(frozen=True)
class Attempt:
    """Outcome of one call: what it returned (anything, None too), what it raised, or a missed deadline."""

    output: object = None
    error: BaseException | None = None
    timed_out: bool = False


class GuardedScorer:
    """One scorer, called in a daemon thread so that neither a call nor the interpreter's exit ever waits for a hang.

    A thread cannot be killed: after a missed deadline the old instance keeps its thread and memory until the process
    ends, and the next call makes a fresh instance.

    Args:
        make: makes the scorer; called here once, and again (within the deadline) after each missed deadline.
    """

    def __init__(self, make: Callable[[], Scorer]) -> None:
        self._make = make
        self._scorer: Scorer | None = make()
        self.requires = self._scorer.requires

    def attempt(self, batch: Sequence[RewardSample], timeout_s: float) -> Attempt:
        """Score once. Whatever the scorer raises (SystemExit and KeyboardInterrupt too: in a thread they mean nothing
        to the process) comes back in the :class:`Attempt`."""
        scorer, answers, answered = self._scorer, list[tuple[Scorer | None, Attempt]](), threading.Event()

        def call() -> None:
            current = scorer
            try:
                current = current or self._make()
                attempt = Attempt(output=current.score(batch))
            except BaseException as error:  # noqa: BLE001 - it is judged by the failure policy, whatever it is
                attempt = Attempt(error=error)
            answers.append((current, attempt))
            answered.set()

        threading.Thread(target=call, name="scorer", daemon=True).start()
        if not answered.wait(min(timeout_s, threading.TIMEOUT_MAX)):
            self._scorer = None
            return Attempt(timed_out=True)
        self._scorer, attempt = answers[0]
        return attempt
