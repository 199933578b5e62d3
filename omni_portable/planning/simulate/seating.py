"""Which replica takes the next call: the router's own rule, or what remains of it for many replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol, cast

from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.rollout.seats import Seat, choose

EXACT = 64
"""Replicas up to which the rule of the router is asked."""


class Seating(Protocol):
    """Replicas by number; each has one call at a time."""

    def take(self, prompts: Sequence[str]) -> int:
        """The replica that draws a call of one request per prompt id; -1 where none is free."""
        ...

    def leave(self, index: int) -> None:
        """The call of this replica has ended."""
        ...


class RouterSeating:
    """The router's seats and its `choose`: idle replicas first, of them one that knows the prompts."""

    def __init__(self, replicas: int) -> None:
        nobody = cast(RolloutEngine, None)  # the rule never looks at the engine
        self._seats = {str(index): Seat(str(index), nobody) for index in range(replicas)}
        self._serving: dict[int, ExitStack] = {}

    def take(self, prompts: Sequence[str]) -> int:
        seat = choose(self._seats.values(), prompts, 1)
        if seat is None:
            return -1
        index = int(seat.name)
        self._serving[index] = ExitStack()
        self._serving[index].enter_context(seat.serving(prompts))
        return index

    def leave(self, index: int) -> None:
        self._serving.pop(index).close()


class IdleSeating:
    """The idle replica that has been idle longest: with one call at a time all idle ones are equally loaded, and who
    knows which prompts is not kept."""

    def __init__(self, replicas: int) -> None:
        self._idle = deque(range(replicas))

    def take(self, prompts: Sequence[str]) -> int:
        return self._idle.popleft() if self._idle else -1

    def leave(self, index: int) -> None:
        self._idle.append(index)


def make_seating(replicas: int) -> Seating:
    """The router's rule costs time in proportion to the replicas; beyond EXACT it is replaced."""
    return RouterSeating(replicas) if replicas <= EXACT else IdleSeating(replicas)
