"""How many pieces of rollout are out at a time: as many as there are replicas to draw them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A bound that may change. Whoever waits gets a slot in the order of asking; a smaller bound takes none away."""

    def __init__(self, limit: int) -> None:
        self._limit, self._taken = limit, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Slots that may be taken at a time."""
        return self._limit

    def resize(self, limit: int) -> None:
        """From now on so many."""
        self._limit = limit
        self._hand_out()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot; it is free again when the block ends."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up(turn)
            raise
        try:
            yield
        finally:
            self._taken -= 1
            self._hand_out()

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        """Its owner was cancelled, perhaps just after it had got the slot."""
        if turn.done() and not turn.cancelled():
            self._taken -= 1
            self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._taken < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
