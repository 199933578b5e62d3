"""Wall-clock seconds by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """Adds up seconds by stage name until taken; stages may nest, each counts its own wall time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - started)

    def add(self, stage: str, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """``timing_s/<stage>`` of everything measured since the last call."""
        taken = {f"timing_s/{stage}": seconds for stage, seconds in self._seconds.items()}
        self._seconds = {}
        return taken
