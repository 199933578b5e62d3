"""A rollout engine on the actor's devices: where it is between the actor and rollout, and what may come next."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.lifecycle import Ack, EngineState
from omni_portable.contracts.rollout import RolloutEngine
from omni_portable.rollout.fanout import check_acks, named

if TYPE_CHECKING:
    from omni_portable.rollout.crew import Latest  # loads torch, which the simulator does without


class Place(str, Enum):
    """home -> coming -> lent -> returning -> home; whoever is out stays out for the rest of the run."""

    HOME = "home"
    COMING = "coming"
    LENT = "lent"
    RETURNING = "returning"
    OUT = "out"


NEXT: dict[Place, tuple[Place, ...]] = {
    Place.HOME: (Place.COMING, Place.OUT),
    Place.COMING: (Place.LENT, Place.RETURNING, Place.OUT),
    Place.LENT: (Place.RETURNING, Place.OUT),
    Place.RETURNING: (Place.HOME, Place.OUT),
    Place.OUT: (),
}
"""Moves that each place allows."""


@dataclass
class Guest:
    """One lent engine. Every acknowledgement is checked; errors name it.

    Args:
        level: of its sleep at home; 0 leaves it resident and paused.
    """

    name: str
    engine: RolloutEngine
    level: int
    place: Place = field(default=Place.HOME, init=False)

    def move(self, to: Place) -> None:
        """
        Raises:
            LifecycleError: this move is not among :data:`NEXT`.
        """
        if to not in NEXT[self.place]:
            raise LifecycleError(
                f"the lent replica '{self.name}' is {self.place.value} and cannot become {to.value}",
                choices=[place.value for place in NEXT[self.place]],
            )
        self.place = to

    def settle(self) -> None:
        """From wherever its engine is: paused, and asleep where it shall be, so that the devices are the actor's.

        Raises:
            LifecycleError, WorkerLostError: it does not give them back.
        """
        state = self._asked_state()
        if state is EngineState.RUNNING:
            self._done("pause", self.engine.pause())
            state = EngineState.PAUSED
        if state is EngineState.PAUSED and self.level:
            self._done("sleep", self.engine.sleep(self.level))

    def rise(self, latest: Latest) -> None:
        """Wake, take the weights that the other replicas hold, and resume.

        Raises:
            LifecycleError, WeightSyncError, WorkerLostError: what kept it from it.
        """
        version, stream = latest
        if self._asked_state() is EngineState.ASLEEP:
            self._done("wake", self.engine.wake(("weights",)))
        if self.level == 2 or self.engine.health().policy_version != version:
            self._done("update_weights", self.engine.update_weights(stream, version), version)
        self._done("resume", self.engine.resume(), version)

    def _asked_state(self) -> EngineState:
        return self.engine.health().state

    def _done(self, operation: str, ack: Ack, version: int | None = None) -> None:
        check_acks({self.name: ack}, operation, ack.policy_version if version is None else version)

    def blamed(self, error: Exception) -> Exception:
        """The same error, naming this replica."""
        return error if f"'{self.name}'" in str(error) else named(error, self.name)
