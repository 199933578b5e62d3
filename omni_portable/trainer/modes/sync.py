"""Colocated, staleness 0: rollout and training take turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from omni_portable.contracts.training import Policy
from omni_portable.trainer.modes.base import Result, Server


class SyncTurns:
    """Rollout fills the buffer, then pauses (and may sleep) while the actor trains.

    Args:
        produce: makes one step's groups, adds them to the buffer and says how many there are.
    """

    def __init__(self, produce: Callable[[int], Awaitable[int]], server: Server) -> None:
        self._produce, self._server = produce, server

    @property
    def fresh(self) -> bool:
        return True

    @property
    def version(self) -> int:
        return self._server.version

    async def start(self) -> None:
        await self._server.start()

    async def fill(self, step: int) -> int:
        return await self._produce(step)

    async def before_update(self) -> None:
        self._server.stop()

    async def carry_out(self, update: Callable[[], Result]) -> Result:
        return update()

    async def publish(self, optimizer_steps: int) -> None:
        """Hand the policy to the rollout engine, whether or not the update changed it: the engine must resume."""
        self._server.wake()
        await self._server.push()

    def serving(self, policy: Policy) -> AbstractAsyncContextManager[None]:
        return self._server.serving(policy)

    def statistics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Nothing runs in the background."""
