"""One weight stream for several replicas that read it side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import PiecewiseStream

Piece = Mapping[str, torch.Tensor]


class Relay:
    """Every piece of the stream is made once, when all who read have taken the one before it, which is let go of then:
    whoever is slow is waited for, and one piece exists at a time.

    Args:
        stream: read once, in the threads of those who read.
        readers: so many are waited for.
        keep: hold on to all tensors.

    Attributes:
        failure: what making a piece raised; those who read are told so by an error of their own.
        kept: what was made so far; nothing without `keep`.
    """

    def __init__(self, stream: PiecewiseStream, readers: int, *, keep: bool) -> None:
        self.manifest = stream.manifest
        self.failure: Exception | None = None
        self._pieces, self._keep = stream.pieces(), keep
        self.kept: dict[str, torch.Tensor] = {}
        self._turn = threading.Condition()
        self._reading, self._waiting, self._made, self._ended = readers, 0, 0, False
        self._piece: Piece | None = None

    @contextmanager
    def reading(self) -> Iterator[PiecewiseStream]:
        """One of those who read; once it leaves, it is not waited for any more, whatever it has taken."""
        try:
            yield _Read(self)
        finally:
            with self._turn:
                self._reading -= 1
                self._turn.notify_all()

    def taken(self) -> Piece | None:
        """The next piece, for one who is done with the last; None at the end.

        Raises:
            WeightSyncError: it cannot be made.
        """
        with self._turn:
            number = self._made
            self._waiting += 1
            self._turn.wait_for(lambda: self._made > number or self._waiting == self._reading)
            if self._made == number:
                self._make()
            if self.failure is not None:
                raise WeightSyncError(f"the weight stream broke off: {self.failure}") from self.failure
            return self._piece

    def stop(self, why: str) -> None:
        """Make no further piece."""
        with self._turn:
            self._pieces = _stopped(why)

    def finish(self) -> None:
        """Have those pieces made, too, that nobody was left to read, if they are kept. For when all have left."""
        with self._turn:
            while self._keep and not self._ended:
                self._make()

    def _make(self) -> None:
        self._piece, self._waiting = None, 0
        try:
            self._piece = next(self._pieces, None)
        except Exception as error:  # noqa: BLE001 - whoever made the relay finds it there
            self.failure = error
        self._ended = self._piece is None
        if self._keep and self._piece is not None:
            self.kept |= self._piece
        self._made += 1
        self._turn.notify_all()


def _stopped(why: str) -> Iterator[Piece]:
    raise WeightSyncError(why)
    yield {}


class _Read:
    """A `PiecewiseStream` of what a relay hands out."""

    def __init__(self, relay: Relay) -> None:
        self.manifest = relay.manifest
        self._relay = relay

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for piece in self.pieces():
            yield from piece.items()
            del piece

    def pieces(self) -> Iterator[Piece]:
        while (piece := self._relay.taken()) is not None:
            yield piece
            del piece
