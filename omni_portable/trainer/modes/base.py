"""What the loop asks of an execution mode, and what all modes share: versions, and weights that provably arrive."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.contracts.training import Policy, TrainEngine
from omni_portable.rollout.replay_buffer import ReplayBuffer

if TYPE_CHECKING:
    from omni_portable.trainer.consistency import SyncProof

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Turns(Protocol):
    """One execution mode. The loop calls, for each step: fill, before_update, carry_out(update), publish."""

    @property
    def version(self) -> int:
        """Policy version that rollouts are drawn from now: what staleness is counted from."""
        ...

    @property
    def fresh(self) -> bool:
        """True while the actor still has the weights of `version` (no optimizer step since they were published)."""
        ...

    async def start(self) -> None:
        """Bring the actor's weights to the rollout side and begin; the engine is running afterwards."""
        ...

    async def fill(self, step: int) -> int:
        """Wait until the buffer holds what `step` trains on; the number of groups to sample."""
        ...

    async def before_update(self) -> None:
        """What must stop before the actor may compute."""
        ...

    async def carry_out(self, update: Callable[[], Result]) -> Result:
        """Run the update; where rollout goes on meanwhile, in a thread of its own."""
        ...

    async def publish(self, optimizer_steps: int) -> None:
        """After an update of so many optimizer steps: bring the weights to the rollout side where they are due."""
        ...

    def serving(self, policy: Policy) -> AbstractAsyncContextManager[None]:
        """Serve `policy` for a while (validation), then the one that rollouts are drawn from again."""
        ...

    def statistics(self) -> dict[str, float]:
        """Metrics of the mode itself since the last call."""
        ...

    async def close(self) -> None:
        """Stop what runs in the background; safe to call twice."""
        ...


@dataclass
class Server:
    """The rollout side as seen by a mode: which version it serves, and how another one gets there.

    Args:
        attempts: times that an update is sent before its failure ends the run.
        sleep_level: 0 keeps the engine resident while it does not serve, 1 and 2 put it to sleep.
    """

    actor: TrainEngine
    engine: RolloutEngine
    proof: SyncProof
    buffer: ReplayBuffer | None
    version: int
    policy: Policy = "current"
    sleep_level: int = 0
    attempts: int = 1

    async def start(self) -> None:
        """The engine begins with the model's own weights; it gets the actor's, under the version the run stands at."""
        self.engine.pause()
        self.version -= 1
        await self.push()

    def stop(self) -> None:
        """Pause the engine, which aborts what is in flight, and put it to sleep where the recipe says so."""
        self.engine.pause()
        if self.sleep_level:
            self.engine.sleep(self.sleep_level)

    def wake(self) -> None:
        """Bring a stopped engine's memory back; it stays paused."""
        if self.sleep_level:
            self.engine.wake(("weights",))

    async def push(self, policy: Policy | None = None) -> None:
        """Update the paused engine to the next version, resume it and prove the sync.

        A failed update leaves the engine paused. Where it is sent again, that is under a further version, because some
        replicas may hold the last one; groups become no staler by versions that nothing was drawn from.

        Raises:
            WeightSyncError: it failed `attempts` times, or the proof failed.
        """
        before = self.version
        await self._push(policy or self.policy)
        self._shift(before, self.version - before - 1)

    async def _push(self, policy: Policy) -> None:
        for left in range(self.attempts - 1, -1, -1):
            try:
                send_weights(self.actor, self.engine, self.version + 1, policy)
                break
            except WeightSyncError as error:
                if not left:
                    raise
                log.warning("%s; the weights are sent again, %d more times at most", error.problem, left)
                self.version += 1
        self.version += 1
        self.engine.resume()
        await self.proof.check(policy)

    def _shift(self, since: int, by: int) -> None:
        if by and self.buffer is not None:
            self.buffer.shift_versions(since, by)

    @asynccontextmanager
    async def serving(self, policy: Policy) -> AsyncIterator[None]:
        """Serve another policy for a while; rollout must rest meanwhile.

        The engine counts two versions more afterwards although the policy that rollouts are drawn from did not change:
        groups that wait in the buffer, and those that are partly drawn, are moved along, so that this does not make
        them stale.
        """
        if policy == self.policy:
            yield
            return
        before = self.version
        self.engine.pause()
        await self._push(policy)
        try:
            yield
        finally:
            self.engine.pause()
            await self._push(self.policy)
            self._shift(before, self.version - before)


async def push_weights(
    actor: TrainEngine, rollout: RolloutEngine, proof: SyncProof, version: int, policy: Policy = "current"
) -> None:
    """Update a paused rollout engine, resume it and prove the sync."""
    send_weights(actor, rollout, version, policy)
    rollout.resume()
    await proof.check(policy)


def send_weights(actor: TrainEngine, rollout: RolloutEngine, version: int, policy: Policy = "current") -> None:
    """Update a paused rollout engine, which stays paused.

    Raises:
        WeightSyncError: it failed, or the engine acknowledged something else.
    """
    ack = rollout.update_weights(actor.weights(policy), version)
    if not ack.ok or ack.policy_version != version:
        raise WeightSyncError(
            f"the rollout engine acknowledged version {ack.policy_version} instead of {version}: {ack.detail}"
        )
