"""Which replica takes the next piece of work: the least loaded one, or one that knows its prompts already."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from omni_portable.contracts.rollout import RolloutEngine

REMEMBERED = 4096
"""Prompts remembered per replica, least recently used goes first."""


@dataclass
class Seat:
    """A replica in the router, with what is out there and which prompts it served (it may have their embeddings, or
    the keys and values of their prefix).

    Args:
        served: requests that were handed to it.
        guest: it is lent, and is not made anew where it is lost.
    """

    name: str
    engine: RolloutEngine
    calls: int = 0
    requests: int = 0
    prompts: OrderedDict[str, None] = field(default_factory=OrderedDict)
    served: int = 0
    guest: bool = False

    @contextmanager
    def serving(self, prompts: Sequence[str]) -> Iterator[None]:
        """Count a call of one request per prompt id while it is out."""
        self.calls += 1
        self.requests += len(prompts)
        self.served += len(prompts)
        for prompt in prompts:
            self.prompts[prompt] = None
            self.prompts.move_to_end(prompt)
        while len(self.prompts) > REMEMBERED:
            self.prompts.popitem(last=False)
        try:
            yield
        finally:
            self.calls -= 1
            self.requests -= len(prompts)


def choose(seats: Iterable[Seat], prompts: Sequence[str], capacity: int) -> Seat | None:
    """The seat for a piece of one request per prompt id, or None where all have `capacity` calls out.

    A seat that knows more of the prompts is preferred as long as it has at most one piece more to do than the idlest
    one; work never waits for a busy seat while another is free.
    """
    free = [seat for seat in seats if seat.calls < capacity]
    if not free:
        return None
    bound = min(seat.requests for seat in free) + len(prompts)
    near = [seat for seat in free if seat.requests <= bound]
    return max(
        near, key=lambda seat: (sum(p in seat.prompts for p in set(prompts)), -seat.requests, -len(seat.prompts))
    )
