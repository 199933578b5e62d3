"""Wall-clock seconds by stage, who was busy and who waited, and which stage held a step up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

CONSUMER = ("update", "sync", "validate", "checkpoint")
"""Stages of the consumer, which does one thing at a time."""
PRODUCER = ("rollout", "reward", "teacher")
"""Stages of the producer; several of each may be going on at once."""
VALIDATE = "validate"
"""Draws, scores and keeps the consumer for it: of no role, and not in what a role was idle for."""
WAIT = "wait"
"""The consumer waits for the buffer."""


@dataclass(frozen=True)
class Span:
    """A stretch of one stage, in seconds since the clock was made."""

    stage: str
    start: float
    end: float


class StageClock:
    """Spans by stage name until taken; stages may nest and overlap, each counts its own wall time. Safe in threads."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._origin = now, now()
        self._taken = 0.0
        self._closed: list[Span] = []
        self._open: dict[int, tuple[str, float]] = {}
        self._seconds: dict[str, float] = {}
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self.spans: list[Span] = []
        """What the last :meth:`take` covered, for the timeline; a span that went on is cut at its end."""

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        with self._lock:
            key, started = next(self._ids), self._time()
            self._open[key] = (stage, started)
        try:
            yield
        finally:
            with self._lock:
                stage, begun = self._open.pop(key)
                self._closed.append(Span(stage, begun, self._time()))
                self._add(stage, self._time() - started)

    def add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._add(stage, seconds)

    def take(self) -> dict[str, float]:
        """Everything since the last call.

        ``timing_s/<stage>``: seconds of the spans that ended, each for itself. ``role_s/<role>/busy`` and ``idle``:
        seconds in which anything of 'rollout', 'reward', 'teacher' (where there is a pool) or 'actor' (the consumer)
        was going on, or nothing, validation left out of both;
        ``role_s/actor/waiting``: those of the idle ones in which it waited for the buffer. ``critical_path_s/<stage>``:
        see :func:`critical_path`.
        """
        with self._lock:
            now = self._time()
            spans = self._closed + [Span(stage, start, now) for stage, start in self._open.values()]
            self._closed = []
            self._open = {key: (stage, now) for key, (stage, _) in self._open.items()}
            seconds, self._seconds = self._seconds, {}
            window, self._taken = (self._taken, now), now
        self.spans = spans
        taken = {f"timing_s/{stage}": value for stage, value in seconds.items()}
        return taken | roles(spans, window[1] - window[0])

    def _add(self, stage: str, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def _time(self) -> float:
        return self._now() - self._origin


def covered(spans: Sequence[Span], stages: Sequence[str]) -> float:
    """Seconds in which at least one span of the stages was going on."""
    total, reached = 0.0, float("-inf")
    for span in sorted((s for s in spans if s.stage in stages), key=lambda s: s.start):
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total


def roles(spans: Sequence[Span], window: float) -> dict[str, float]:
    """Busy, idle and waiting seconds by role in a window of so many seconds, and the critical path."""
    figures: dict[str, float] = {}
    present = {span.stage for span in spans}
    window -= covered(spans, (VALIDATE,))
    consumer = tuple(stage for stage in CONSUMER if stage != VALIDATE)
    producers = [(stage, (stage,)) for stage in PRODUCER if stage != "teacher" or stage in present]
    for role, stages in (*producers, ("actor", consumer)):
        busy = covered(spans, stages)
        figures[f"role_s/{role}/busy"] = busy
        figures[f"role_s/{role}/idle"] = max(0.0, window - busy)
    figures["role_s/actor/waiting"] = covered(spans, (WAIT,))
    return figures | {f"critical_path_s/{stage}": seconds for stage, seconds in critical_path(spans).items()}


def critical_path(spans: Sequence[Span]) -> dict[str, float]:
    """Stage -> seconds in which it was what the step was waiting for.

    While the consumer works, that is its own stage. While it waits, it is the rollout, or, where none is going on, the
    reward or the teacher; 'other' where none of them is.
    """
    held: dict[str, float] = {}
    edges = sorted({edge for span in spans for edge in (span.start, span.end)})
    for start, end in itertools.pairwise(edges):
        going = {span.stage for span in spans if span.start <= start and span.end >= end}
        stage = next((name for name in (*CONSUMER, *PRODUCER) if name in going), "other")
        held[stage] = held.get(stage, 0.0) + end - start
    return held
