"""Counters of a rollout engine, read and reset once per round."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class RolloutStatistics:
    """What an engine achieved: batch sizes, forwards, cache look-ups, aborts, seconds per stage.

    Args:
        counters: names that are reported even when nothing was counted.
    """

    def __init__(self, counters: Iterable[str] = ()) -> None:
        self._counters = tuple(counters)
        self._batches: list[int] = []
        self._counts: dict[str, int] = dict.fromkeys(self._counters, 0)
        self._seconds: dict[str, float] = {}

    def batch(self, size: int) -> None:
        """Count one batch of `size` requests."""
        self._batches.append(size)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to the counter `name`."""
        self._counts[name] = self._counts.get(name, 0) + amount

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall time of the block to `stage`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - started

    def take(self) -> dict[str, float]:
        """The figures since the last call, as ``perf/rollout/...`` metrics; then all start again at zero.

        `perf/rollout/batch_size/*` is absent when nothing ran: there is no mean of no batches.
        """
        figures: dict[str, float] = {"perf/rollout/batches": float(len(self._batches))}
        if self._batches:
            figures["perf/rollout/batch_size/mean"] = sum(self._batches) / len(self._batches)
            figures["perf/rollout/batch_size/min"] = float(min(self._batches))
            figures["perf/rollout/batch_size/max"] = float(max(self._batches))
        figures.update((f"perf/rollout/{name}", float(amount)) for name, amount in self._counts.items())
        figures.update((f"perf/rollout/seconds/{stage}", seconds) for stage, seconds in self._seconds.items())
        self._batches, self._counts, self._seconds = [], dict.fromkeys(self._counters, 0), {}
        return figures
