"""Lending in a simulated run: the trainer's own policy over replicas that only take their time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from omni_portable.contracts.lifecycle import Ack, EngineState
from omni_portable.contracts.rollout import EngineHealth, RolloutEngine
from omni_portable.contracts.training import TrainEngine
from omni_portable.contracts.weights import WeightManifest
from omni_portable.planning.simulate.clock import VirtualLoop
from omni_portable.planning.simulate.cluster import Cluster, Piece
from omni_portable.planning.simulate.roles import SimulatedActor
from omni_portable.planning.simulate.workload import Workload
from omni_portable.trainer.modes.guest import Guest, Place
from omni_portable.trainer.modes.lending import LENT, Lending, Terms
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.modes.stock import Stock
from omni_portable.trainer.timing import StageClock

if TYPE_CHECKING:
    from omni_portable.rollout.router import Router


@dataclass
class SimulatedGuest:
    """A lent `RolloutEngine`: states and versions are real, seconds made up.

    Args:
        switch_s: seconds that sleeping and waking take together.
        update_s: of bringing new weights.
    """

    loop: VirtualLoop
    switch_s: float
    update_s: float
    state: EngineState
    version: int = -1
    name: str = "lent"

    def health(self) -> EngineHealth:
        return EngineHealth(self.state, self.version, 0)

    def pause(self) -> Ack:
        return self._ack("pause", EngineState.PAUSED, 0.0)

    def resume(self) -> Ack:
        return self._ack("resume", EngineState.RUNNING, 0.0)

    def sleep(self, level: int = 1) -> Ack:
        return self._ack("sleep", EngineState.ASLEEP, self.switch_s / 2)

    def wake(self, tags: object = ("weights",)) -> Ack:
        return self._ack("wake", EngineState.PAUSED, self.switch_s / 2)

    def update_weights(self, stream: object, version: int) -> Ack:
        self.version = version
        return self._ack("update_weights", EngineState.PAUSED, self.update_s)

    def _ack(self, operation: str, state: EngineState, seconds: float) -> Ack:
        self.state = state
        self.loop.spend(seconds)
        return Ack(operation, self.version)


@dataclass
class SimulatedRouter:
    """What lending asks of the router, answered by the cluster."""

    cluster: Cluster
    seats: dict[str, int] = field(default_factory=dict)

    def latest(self) -> tuple[int, WeightManifest]:
        """The version, and nothing to bring."""
        return self.cluster.version, WeightManifest("full")

    def admit(self, name: str, engine: SimulatedGuest) -> None:
        if engine.state is not EngineState.RUNNING or engine.version != self.cluster.version:
            raise RuntimeError(f"'{name}' is {engine.state.value} at version {engine.version}")
        self.seats[name] = self.cluster.join()

    def served(self, name: str) -> int:
        return self.cluster.served(self.seats[name])

    def leave(self, name: str) -> None:
        self.cluster.depart(self.seats.pop(name))


class SimulatedLending:
    """The policy objects of `trainer.modes` for the loan of a workload, and what they did.

    Args:
        loop / cluster / work: of the run; the work has a loan.
    """

    def __init__(self, loop: VirtualLoop, cluster: Cluster, work: Workload) -> None:
        loan = work.loan
        assert loan is not None
        self.stock = Stock(work.placement.prompts * work.samples)
        self.clock = StageClock(loop.time)
        self.lends = self.samples = 0
        rest = EngineState.ASLEEP if loan.sleep_level else EngineState.PAUSED  # before the clock began to run
        engines = [SimulatedGuest(loop, work.switch_s, work.sync_s, rest) for _ in range(loan.replicas)]
        guests = [
            Guest(f"lent-{index}", cast(RolloutEngine, engine), loan.sleep_level)
            for index, engine in enumerate(engines)
        ]
        self.policy = Lending(
            guests,
            cast("Router", SimulatedRouter(cluster)),
            cast(TrainEngine, SimulatedActor()),
            Slots(work.placement.replicas),
            self.stock,
            self.clock,
            Terms(loan.lend_below, loan.reclaim_at),
        )
        self.lent_s = 0.0
        """Seconds in which devices were lent, switching left out."""

    def scored(self, step: int, piece: Piece) -> bool:
        """A piece of a round is drawn and scored; whether that may end a loan."""
        self.stock.add(step, piece.size)
        return any(guest.place is Place.LENT for guest in self.policy.guests)

    def collect(self) -> None:
        """Add up what happened since the last call."""
        figures = self.policy.statistics()
        self.lends += int(figures["hybrid/lends"])
        self.samples += int(figures["hybrid/requests"])
        self.lent_s += self.clock.take().get(f"timing_s/{LENT}", 0.0)
