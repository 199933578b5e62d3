"""Calling a scorer with a deadline: one that hangs is left behind and replaced; the caller is never held up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool

from omni_portable.contracts.reward import RewardOutput, RewardSample, Scorer


@dataclass(frozen=True)
class Attempt:
    """Outcome of one call: an output, an error, or (neither) a missed deadline."""

    output: RewardOutput | None = None
    error: Exception | None = None

    @property
    def timed_out(self) -> bool:
        return self.output is None and self.error is None


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
        """Score once. Exceptions of the scorer come back in the :class:`Attempt`."""
        scorer, errors = self._scorer, list[BaseException]()

        def call() -> tuple[Scorer, RewardOutput]:
            current = scorer or self._make()
            return current, current.score(batch)

        with ThreadPool(1) as pool:  # its threads are daemons; leaving the block does not wait for them
            pending = pool.apply_async(call, error_callback=errors.append)
            pending.wait(timeout_s)
            if not pending.ready():
                self._scorer = None
                return Attempt()
        if errors:
            assert isinstance(errors[0], Exception)
            return Attempt(error=errors[0])
        self._scorer, output = pending.get()
        return Attempt(output=output)
