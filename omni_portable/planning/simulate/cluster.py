"""The rollout side of a simulated run: replicas that draw pieces, scorers that score them, and the gate between.

Pieces take their turn as in `trainer.stages.RolloutStage`: in the order of submission, one per replica, behind a gate
that is closed while weights change. Who takes a piece is the business of :mod:`seating`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omni_portable.planning.simulate.clock import VirtualLoop
from omni_portable.planning.simulate.seating import make_seating
from omni_portable.planning.simulate.times import Ratio


class Piece:
    """Requests that are drawn in one call to a replica."""

    __slots__ = ("left", "part", "prompts", "rounds", "seconds", "seat", "since", "size", "version")

    def __init__(self, part: Part, size: int, prompts: Sequence[str], seconds: float) -> None:
        self.part, self.size, self.prompts = part, size, prompts
        self.seconds = self.left = seconds
        self.version = -1
        """Oldest policy version that any of it was drawn with; -1 before the start."""
        self.seat = -1
        self.since = 0.0
        self.rounds = 0
        """Times that it was started: an event of an earlier start no longer counts."""


class Part:
    """The pieces of one round.

    Args:
        on_scored: called with every piece that is drawn and scored, and says whether anybody waits for that; None where
            nobody asks.
    """

    def __init__(
        self, done: asyncio.Future[None], overlap: bool, on_scored: Callable[[Piece], bool] | None = None
    ) -> None:
        self.done, self.overlap, self.on_scored = done, overlap, on_scored
        self.pieces: list[Piece] = []
        self.drawn = self.scored = 0


@dataclass
class Meter:
    """Mean over time, and maximum, of a length."""

    area: float = 0.0
    largest: int = 0
    length: int = 0
    since: float = 0.0

    def set(self, length: int, now: float) -> None:
        self.area += self.length * (now - self.since)
        self.length, self.since = length, now
        if length > self.largest:
            self.largest = length

    def mean(self, now: float) -> float:
        self.set(self.length, now)
        return self.area / now if now else 0.0


class Cluster:
    """A `World` for the loop.

    Args:
        replicas: each draws one piece at a time.
        ratio / score_ratio: durations relative to their means.
        score_seconds: of one piece; 0 where nothing is scored.
        scorers: pieces scored at a time.
        restart: interrupted pieces begin again instead of going on.
        overlap: pieces are scored as soon as they are drawn, not once the round is.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        replicas: int,
        ratio: Ratio,
        *,
        score_seconds: float = 0.0,
        score_ratio: Ratio = lambda: 1.0,
        scorers: int = 1,
        restart: bool = True,
        overlap: bool = True,
    ) -> None:
        self._loop, self._ratio, self._restart, self._overlap = loop, ratio, restart, overlap
        self._score_seconds, self._score_ratio, self._free_scorers = score_seconds, score_ratio, scorers
        self._seating = make_seating(replicas)
        self._idle = replicas
        self._events: list[tuple[float, int, Piece, int]] = []
        self._order = 0
        self._waiting: deque[Piece] = deque()
        self._unscored: deque[Piece] = deque()
        self._running: dict[int, Piece] = {}
        """Seat -> what is drawn there, oldest first."""
        self._lent: dict[int, int] = {}
        """Seat of a lent replica -> samples that it was given."""
        self._open, self._resolved = True, False
        self._drained: list[asyncio.Future[None]] = []
        self.version = 0
        self.busy_s = self.lent_busy_s = self.lost_s = 0.0
        """Seconds of all replicas together, of lent ones together: drawing, and of both, thrown away by
        interruptions."""
        self.interrupted = 0
        self.events = 0
        self.queue = Meter()
        """Pieces that wait for a replica or the gate."""

    def draw(
        self, pieces: Sequence[tuple[float, int, Sequence[str]]], on_scored: Callable[[Piece], bool] | None = None
    ) -> Part:
        """Submit a round; `done` of it resolves once every piece is drawn and scored.

        Args:
            pieces: of each one its mean seconds on a replica, its samples, and the prompt ids of its requests.
            on_scored: see :class:`Part`.
        """
        part, ratio = Part(self._loop.create_future(), self._overlap, on_scored), self._ratio
        part.pieces = [Piece(part, size, prompts, seconds * ratio()) for seconds, size, prompts in pieces]
        self._waiting.extend(part.pieces)
        self._start()
        return part

    def open(self) -> None:
        self._open = True
        self._start()

    def close(self) -> None:
        self._open = False

    async def drained(self) -> None:
        """Until no piece is being drawn."""
        if self._running:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(waiting)
            await waiting

    def interrupt(self) -> None:
        """Stop what is being drawn; it is first in line again."""
        self._stop(list(self._running.values()))

    def join(self) -> int:
        """One more replica draws from now on, a lent one; its seat."""
        seat = self._seating.add()
        self._lent[seat] = 0
        self._idle += 1
        self._start()
        return seat

    def served(self, seat: int) -> int:
        """Samples that a lent replica was given since it joined."""
        return self._lent[seat]

    def depart(self, seat: int) -> None:
        """A lent replica is gone; what it was drawing is first in line again."""
        if seat in self._running:
            self._stop([self._running[seat]])
        self._seating.remove(seat)
        self._idle -= 1
        del self._lent[seat]
        self._start()

    def advance(self, until: float) -> float:
        """See :class:`clock.World`."""
        events = self._events
        while events and events[0][0] <= until:
            time, _, piece, rounds = heapq.heappop(events)
            if rounds != piece.rounds:
                continue
            self.events += 1
            self._loop.now = time
            if piece.seat >= 0:
                self._finished_drawing(piece)
            else:
                self._free_scorers += 1
                self._scored(piece)
            if self._resolved:
                self._resolved = False
                return time
        return until

    def _start(self) -> None:
        if not (self._waiting and self._idle and self._open):
            self.queue.set(len(self._waiting), self._loop.now)
            return
        now, waiting, take, events = self._loop.now, self._waiting, self._seating.take, self._events
        for _ in range(min(self._idle, len(waiting))):
            piece = waiting.popleft()
            piece.seat, piece.since = take(piece.prompts), now
            if piece.version < 0:
                piece.version = self.version
            self._running[piece.seat] = piece
            if piece.seat in self._lent:
                self._lent[piece.seat] += piece.size
            self._order += 1
            heapq.heappush(events, (now + piece.left, self._order, piece, piece.rounds))
            self._idle -= 1
        self.queue.set(len(waiting), now)

    def _push(self, time: float, piece: Piece) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, piece, piece.rounds))

    def _stop(self, stopped: Sequence[Piece]) -> None:
        for piece in stopped:
            elapsed = self._leave(piece)
            if self._restart:
                self.lost_s += piece.seconds - piece.left + elapsed
                piece.left, piece.version = piece.seconds, -1
            else:
                piece.left -= elapsed
            piece.rounds += 1
        self.interrupted += len(stopped)
        self._waiting.extendleft(reversed(stopped))
        self.queue.set(len(self._waiting), self._loop.now)

    def _leave(self, piece: Piece) -> float:
        """Free the seat of a piece; the seconds that it sat there."""
        elapsed = self._loop.now - piece.since
        if piece.seat in self._lent:
            self.lent_busy_s += elapsed
        else:
            self.busy_s += elapsed
        self._seating.leave(piece.seat)
        self._idle += 1
        del self._running[piece.seat]
        piece.seat = -1
        return elapsed

    def _finished_drawing(self, piece: Piece) -> None:
        self._leave(piece)
        part = piece.part
        part.drawn += 1
        if not self._score_seconds:
            self._count(piece)
        elif part.overlap:
            self._unscored.append(piece)
            self._score()
        elif part.drawn == len(part.pieces):
            self._unscored.extend(part.pieces)
            self._score()
        if self._waiting:
            self._start()
        if self._drained and not self._running:
            for waiting in self._drained:
                waiting.set_result(None)
                self._resolved = True
            self._drained.clear()

    def _score(self) -> None:
        while self._unscored and self._free_scorers:
            self._free_scorers -= 1
            self._push(self._loop.now + self._score_seconds * self._score_ratio(), self._unscored.popleft())

    def _scored(self, piece: Piece) -> None:
        self._score()
        self._count(piece)

    def _count(self, piece: Piece) -> None:
        part = piece.part
        part.scored += 1
        if part.on_scored is not None:
            self._resolved |= part.on_scored(piece)
        if part.scored == len(part.pieces) and not part.done.done():
            part.done.set_result(None)
            self._resolved = True
