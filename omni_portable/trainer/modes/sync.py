"""Colocated, staleness 0: rollout and training take turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.training import Policy
from omni_portable.trainer.modes.base import Result, Server


class SyncTurns:
    """Rollout fills the buffer, then pauses (and may sleep) while the actor trains; the actor may sleep while rollout
    draws. Both are awake only while weights are handed over, and while a checkpoint is written.

    Args:
        produce: makes one step's groups, adds them to the buffer and says how many there are.
        actor_sleeps: what of the actor sleeps meanwhile, with a copy on the host.
    """

    def __init__(
        self, produce: Callable[[int], Awaitable[int]], server: Server, actor_sleeps: Sequence[SleepTag] = ()
    ) -> None:
        self._produce, self._server = produce, server
        self._actor_sleeps = tuple(dict.fromkeys(actor_sleeps))

    @property
    def fresh(self) -> bool:
        return True

    @property
    def version(self) -> int:
        return self._server.version

    async def start(self) -> None:
        await self._server.start()

    async def fill(self, step: int) -> int:
        self._rest()
        return await self._produce(step)

    async def before_update(self) -> None:
        """Rollout makes room first, then the actor takes it."""
        self._server.stop()
        self._rise()

    async def carry_out(self, update: Callable[[], Result]) -> Result:
        return update()

    async def publish(self, optimizer_steps: int) -> None:
        """Hand the policy to the rollout engine, whether or not the update changed it: the engine must resume."""
        self._server.wake()
        await self._server.push()

    @asynccontextmanager
    async def serving(self, policy: Policy) -> AsyncIterator[None]:
        async with self._server.serving(policy):
            self._rest()
            try:
                yield
            finally:
                self._rise()

    def statistics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Nothing runs in the background."""

    def _rest(self) -> None:
        if self._actor_sleeps:
            self._server.actor.sleep(1, self._actor_sleeps)

    def _rise(self) -> None:
        if self._actor_sleeps:
            self._server.actor.wake(self._actor_sleeps)
