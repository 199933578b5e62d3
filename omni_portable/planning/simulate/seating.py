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

    def add(self) -> int:
        """One more replica; its number, which no other had."""
        ...

    def remove(self, index: int) -> None:
        """An idle replica is here no more."""
        ...


class RouterSeating:
    """The router's seats and its `choose`: idle replicas first, of them one that knows the prompts."""

    def __init__(self, replicas: int) -> None:
        self._seats: dict[str, Seat] = {}
        self._serving: dict[int, ExitStack] = {}
        self._made = 0
        for _ in range(replicas):
            self.add()

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

    def add(self) -> int:
        name = str(self._made)
        self._seats[name] = Seat(name, cast(RolloutEngine, None))  # the rule never looks at the engine
        self._made += 1
        return self._made - 1

    def remove(self, index: int) -> None:
        del self._seats[str(index)]


class IdleSeating:
    """The idle replica that has been idle longest: with one call at a time all idle ones are equally loaded, and who
    knows which prompts is not kept."""

    def __init__(self, replicas: int) -> None:
        self._idle = deque(range(replicas))
        self._made = replicas

    def take(self, prompts: Sequence[str]) -> int:
        return self._idle.popleft() if self._idle else -1

    def leave(self, index: int) -> None:
        self._idle.append(index)

    def add(self) -> int:
        self._idle.append(self._made)
        self._made += 1
        return self._made - 1

    def remove(self, index: int) -> None:
        self._idle.remove(index)


def make_seating(replicas: int) -> Seating:
    """The router's rule costs time in proportion to the replicas; beyond EXACT it is replaced."""
    return RouterSeating(replicas) if replicas <= EXACT else IdleSeating(replicas)
