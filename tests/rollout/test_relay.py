"""A weight stream that several replicas read: each piece is made once, and let go of before the next one is."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import PiecewiseStream, WeightManifest
from omni_portable.rollout.relay import Relay

LIMIT_S = 120.0


class Counted(torch.Tensor):
    """One that weak references can tell of."""


class Pieces:
    """A stream of two tensors a piece; knows how many of them exist."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.manifest = WeightManifest("full")
        self.count, self.fails_at = count, fails_at
        self.made: list[int] = []
        self.alive: list[int] = []
        self._references: list[weakref.ref[torch.Tensor]] = []

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        raise AssertionError("it is read in pieces")

    def pieces(self) -> Iterator[Mapping[str, torch.Tensor]]:
        for number in range(self.count):
            if number == self.fails_at:
                raise ZeroDivisionError("rank 0 was lost")
            self.alive.append(sum(reference() is not None for reference in self._references))
            piece = {f"{number}{side}": torch.full((2,), float(number)).as_subclass(Counted) for side in "ab"}
            self._references += [weakref.ref(tensor) for tensor in piece.values()]
            self.made.append(number)
            yield piece
            del piece


def side_by_side(relay: Relay, *reads: Callable[[PiecewiseStream], object]) -> list[object]:
    """What each came back with, or the error."""

    def run(read: Callable[[PiecewiseStream], object]) -> object:
        with relay.reading() as stream:
            return read(stream)

    with ThreadPoolExecutor(len(reads)) as threads:
        futures = [threads.submit(run, read) for read in reads]
    return [future.exception(LIMIT_S) or future.result() for future in futures]


def names(stream: PiecewiseStream) -> list[str]:
    found = []
    for name, tensor in stream:
        assert float(tensor[0]) == int(name[0])
        found.append(name)
        del tensor
    return found


def test_all_read_everything_and_one_piece_exists_at_a_time() -> None:
    stream = Pieces(4)
    relay = Relay(stream, 3, keep=False)
    found = side_by_side(relay, names, names, names)
    assert found == [[f"{n}{side}" for n in range(4) for side in "ab"]] * 3
    assert stream.made == [0, 1, 2, 3]
    assert stream.alive == [0, 0, 0, 0]
    assert (relay.kept, relay.failure) == ({}, None)


def test_whoever_is_slow_is_waited_for() -> None:
    stream, go, ahead = Pieces(3), threading.Event(), threading.Event()

    def slow(given: PiecewiseStream) -> int:
        pieces = given.pieces()
        next(pieces)
        assert ahead.wait(LIMIT_S)
        assert stream.made == [0]
        go.set()
        return 1 + sum(1 for _ in pieces)

    def fast(given: PiecewiseStream) -> int:
        pieces = given.pieces()
        next(pieces)
        ahead.set()
        next(pieces)
        assert go.is_set()
        return 2 + sum(1 for _ in pieces)

    assert side_by_side(Relay(stream, 2, keep=False), slow, fast) == [3, 3]


def test_one_that_leaves_is_not_waited_for_wherever_the_others_are() -> None:
    def leaves(given: PiecewiseStream) -> None:
        next(given.pieces())
        raise KeyError("dead")

    def never_reads(given: PiecewiseStream) -> str:
        return "nothing"

    for _ in range(20):
        gone, nothing, left = side_by_side(Relay(Pieces(3), 3, keep=False), leaves, never_reads, names)
        assert isinstance(gone, KeyError)
        assert (nothing, len(left)) == ("nothing", 6)


@pytest.mark.parametrize("fails_at", [0, 2])
def test_a_piece_that_cannot_be_made_ends_all_and_is_found_once(fails_at: int) -> None:
    relay = Relay(Pieces(3, fails_at), 2, keep=True)
    for error in side_by_side(relay, names, names):
        assert isinstance(error, WeightSyncError)
        assert "broke off: rank 0 was lost" in error.problem
    assert isinstance(relay.failure, ZeroDivisionError)
    relay.finish()
    assert len(relay.kept) == 2 * fails_at


def test_what_is_kept_is_all_even_where_nobody_is_left_to_read_it() -> None:
    def leaves(given: PiecewiseStream) -> None:
        next(given.pieces())
        raise KeyError("dead")

    for keep, count in ((True, 6), (False, 0)):
        stream = Pieces(3)
        relay = Relay(stream, 2, keep=keep)
        side_by_side(relay, leaves, leaves)
        relay.finish()
        assert len(relay.kept) == count
        assert stream.made == list(range(3 if keep else 1))
    failing = Relay(Pieces(3, 2), 1, keep=True)
    side_by_side(failing, leaves)
    failing.finish()
    assert isinstance(failing.failure, ZeroDivisionError)


def test_after_a_stop_no_piece_is_made() -> None:
    stream = Pieces(4)
    relay = Relay(stream, 1, keep=True)

    def stops(given: PiecewiseStream) -> list[str]:
        pieces = given.pieces()
        next(pieces)
        relay.stop("the update was interrupted")
        return [name for piece in pieces for name in piece]

    (error,) = side_by_side(relay, stops)
    assert isinstance(error, WeightSyncError)
    assert "the update was interrupted" in error.problem
    assert stream.made == [0]
