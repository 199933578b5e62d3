"""How the producer and the consumer share the machine: the only place that differs between execution modes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.training import Policy, TrainEngine
from omni_portable.trainer.consistency import SyncProof


class SyncTurns:
    """Colocated, staleness 0: rollout fills the buffer, then pauses (and may sleep) while the actor trains.

    Args:
        produce: makes one step's groups and adds them to the buffer.
        sleep_level: 0 keeps the rollout engine resident while training, 1 and 2 put it to sleep.
        proof: run after each weight sync.
        version: policy version the rollout engine holds.
        policy: that rollouts are drawn from (`Algorithm.rollout_policy`).
    """

    def __init__(
        self,
        produce: Callable[[int], Awaitable[None]],
        actor: TrainEngine,
        rollout: RolloutEngine,
        proof: SyncProof,
        sleep_level: int,
        version: int,
        policy: Policy = "current",
    ) -> None:
        self._produce, self._actor, self._rollout = produce, actor, rollout
        self.proof, self._sleep_level = proof, sleep_level
        self.version, self.policy = version, policy

    async def fill(self, step: int) -> None:
        """Bring the buffer to where step can be consumed."""
        await self._produce(step)

    async def before_update(self) -> None:
        self._rollout.pause()
        if self._sleep_level:
            self._rollout.sleep(self._sleep_level)

    async def publish(self) -> None:
        """Hand the policy that rollouts are drawn from to the rollout engine; it must be paused or asleep."""
        if self._sleep_level:
            self._rollout.wake(("weights",))
        await self._push(self.policy)

    @asynccontextmanager
    async def serving(self, policy: Policy) -> AsyncIterator[None]:
        """Serve another policy for a while (for validation), then the one that rollouts are drawn from again."""
        if policy == self.policy:
            yield
            return
        self._rollout.pause()
        await self._push(policy)
        try:
            yield
        finally:
            self._rollout.pause()
            await self._push(self.policy)

    async def _push(self, policy: Policy) -> None:
        await push_weights(self._actor, self._rollout, self.proof, self.version + 1, policy)
        self.version += 1


async def push_weights(
    actor: TrainEngine, rollout: RolloutEngine, proof: SyncProof, version: int, policy: Policy = "current"
) -> None:
    """Update a paused rollout engine, resume it and prove the sync."""
    ack = rollout.update_weights(actor.weights(policy), version)
    if not ack.ok or ack.policy_version != version:
        raise WeightSyncError(
            f"the rollout engine acknowledged version {ack.policy_version} instead of {version}: {ack.detail}"
        )
    rollout.resume()
    await proof.check(policy)
