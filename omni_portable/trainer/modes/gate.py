"""A gate that pieces of rollout pass; closed while weights change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Open at first. Whoever wants to pass waits while it is closed; whoever closed it may wait until all are out."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Wait for the gate to be open; inside until the block ends."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    def close(self) -> None:
        """Let nobody in any more."""
        self._open.clear()

    def open(self) -> None:
        """Let everybody in again."""
        self._open.set()

    async def drained(self) -> None:
        """Until nobody is inside."""
        await self._empty.wait()
