"""How much of each round is drawn and scored: what tells whether the buffer will be short for the next step."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Stock:
    """Samples of each round that are drawn and scored. Used from the thread of one event loop.

    Args:
        needed: samples that a step trains on.
    """

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._ready: dict[int, int] = defaultdict(int)
        self._changed = asyncio.Event()

    def add(self, step: int, samples: int) -> None:
        """So many more of a round."""
        self._ready[step] += samples
        self._changed.set()

    def share(self, step: int) -> float:
        """Of what the step trains on; above 1 where further prompts were drawn."""
        return self._ready.get(step, 0) / self._needed

    def forget(self, step: int) -> None:
        """The round is complete."""
        self._ready.pop(step, None)

    async def reaches(self, step: int, share: float) -> None:
        """Until so much of a round is there."""
        while self.share(step) < share:
            self._changed.clear()
            await self._changed.wait()
