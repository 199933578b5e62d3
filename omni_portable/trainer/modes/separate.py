"""Rollout runs ahead on machines of its own while the actor trains; versions and staleness are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from omni_portable.contracts.training import Policy
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.modes.base import Result, Server
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.lead import Lead
from omni_portable.trainer.modes.lending import Lending


class SeparateTurns:
    """Rounds are submitted as soon as their staleness can stay within its bound. Each draws, scores and stores on its
    own, so the rewards of one overlap with the rollout of the next, and both with training.

    Args:
        produce: makes one step's groups, adds them to the buffer and says how many there are.
        gate: that every piece of training rollout passes (those of validation do not).
        start_step / total_steps: the first round is start_step + 1, the last total_steps.
        interrupt: how new weights get in. False lets the pieces that are out finish first ('separate_async'); True
            aborts them, and whoever drew them goes on with them under the new version ('fully_async').
        lending: engines on the actor's devices that help while a round is waited for.
    """

    def __init__(
        self,
        produce: Callable[[int], Awaitable[int]],
        server: Server,
        buffer: ReplayBuffer,
        gate: Gate,
        lead: Lead,
        start_step: int,
        total_steps: int,
        *,
        interrupt: bool = False,
        lending: Lending | None = None,
    ) -> None:
        self._produce, self._server, self._buffer = produce, server, buffer
        self._gate, self._lead, self._interrupt, self._lending = gate, lead, interrupt, lending
        self._trained, self._submitted, self._total = start_step, start_step, total_steps
        self._pending = 0
        self._rounds: dict[int, asyncio.Task[int]] = {}

    @property
    def version(self) -> int:
        return self._server.version

    @property
    def fresh(self) -> bool:
        return self._pending == 0

    async def start(self) -> None:
        """Bring the weights over, then begin to run ahead."""
        await self._server.start()
        if self._lending is not None:
            await self._lending.start()
        self._submit()

    async def fill(self, step: int) -> int:
        """Until the round is stored; what went wrong in its rollout or rewards is raised here."""
        making = self._rounds.pop(step)
        made = await (making if self._lending is None else self._lending.during(step, making))
        return min(made, self._buffer.available(self.version))

    async def before_update(self) -> None:
        """Nothing stops: the actor has its devices to itself."""

    async def carry_out(self, update: Callable[[], Result]) -> Result:
        return await asyncio.to_thread(update)

    async def publish(self, optimizer_steps: int) -> None:
        """One more round is trained; the weights travel once `sync_interval` optimizer steps have gathered."""
        self._pending += optimizer_steps
        self._trained += 1
        if self._pending >= self._lead.sync_interval:
            async with self._resting():
                await self._server.push()
            self._pending = 0
        self._submit()

    @asynccontextmanager
    async def serving(self, policy: Policy) -> AsyncIterator[None]:
        """Training rollout rests during a validation with another policy; with the present one it goes on beside it."""
        if policy == self._server.policy:
            yield
            return
        async with self._resting(), self._server.serving(policy):
            yield

    def statistics(self) -> dict[str, float]:
        return {} if self._lending is None else self._lending.statistics()

    async def close(self) -> None:
        """Cancel every round that is not stored."""
        rounds, self._rounds = list(self._rounds.values()), {}
        for task in rounds:
            task.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)

    @asynccontextmanager
    async def _resting(self) -> AsyncIterator[None]:
        """Inside, nothing of training is in flight and the engine is paused."""
        self._gate.close()
        try:
            if not self._interrupt:
                await self._gate.drained()
            self._server.engine.pause()
            await self._gate.drained()
            yield
        finally:
            self._gate.open()

    def _submit(self) -> None:
        """Only a publication changes what is allowed, so this runs after each, and at the start."""
        while self._submitted < self._total:
            ahead = self._submitted - self._trained
            if not self._lead.allows(ahead, self._pending):
                return
            self._submitted += 1
            name = f"rollout round {self._submitted}"
            self._rounds[self._submitted] = asyncio.create_task(self._round(self._submitted), name=name)

    async def _round(self, step: int) -> int:
        return await self._produce(step)
