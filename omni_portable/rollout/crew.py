"""The replicas behind a router: who is here, who was lost, and how a new one is brought to where the others are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from omni_portable.contracts.errors import (
    EngineEndedError,
    LifecycleError,
    OmniPortableError,
    WeightSyncError,
    WorkerLostError,
)
from omni_portable.contracts.lifecycle import Ack, EngineState
from omni_portable.contracts.rollout import RecallableUpdates, RolloutEngine
from omni_portable.contracts.weights import WeightManifest, WeightStream
from omni_portable.models.weights import NamedTensorStream
from omni_portable.rollout.distant import kept
from omni_portable.rollout.fanout import Answers, call_all, check_acks, give_up
from omni_portable.rollout.seats import Seat

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

Latest = tuple[int, WeightStream]
"""A policy version with its weights, on the host; the stream is read once."""


class Crew:
    """Seats of living replicas, the state that all of them are in, and the policy version that all of them hold.

    Where lost replicas are replaced, a copy of the last weights is kept on the host, of distant tensors where these
    are: the actor has moved on by the time that a replica needs them. Only the making of an engine runs in the
    background; it joins when the owner's thread next looks.

    Args:
        replicas / restart / restarts / keep / abandon: as in :class:`omni_portable.rollout.router.Router`.
    """

    def __init__(
        self,
        replicas: Mapping[str, RolloutEngine],
        restart: Callable[[str], RolloutEngine] | None,
        restarts: int,
        keep: bool = False,
        abandon: Callable[[str], object] | None = None,
    ) -> None:
        self.seats = {name: Seat(name, engine) for name, engine in replicas.items()}
        self.state, self.version = EngineState.RUNNING, 0
        self.level, self.woken = 0, list[str]()
        self.restarted = 0
        self._restart, self._left = restart, restarts if restart else 0
        self._abandon = abandon or (lambda name: None)
        self.keeps = keep or self._left > 0
        self._coming: dict[str, Future[RolloutEngine]] = {}
        self._latest: tuple[WeightManifest, dict[str, torch.Tensor]] | None = None
        self._trouble: OmniPortableError | None = None
        self._dead: dict[str, WorkerLostError] = {}
        self._threads = ThreadPoolExecutor(len(replicas), "restart")

    def engines(self) -> dict[str, RolloutEngine]:
        """Name -> engine of the living; where there are none, the first that comes back is waited for.

        Raises:
            WorkerLostError: all are lost, and none will come back.
        """
        self.collect()
        while not self.seats:
            self.require_some()
            wait(self._coming.values(), return_when=FIRST_COMPLETED)
            self.collect()
        return {name: seat.engine for name, seat in self.seats.items()}

    def settle(self, answers: Answers[Answer], asked: Mapping[str, RolloutEngine]) -> None:
        """Take out who is lost according to these answers. A replica whose engine has lost its own process counts as
        lost where it may be replaced (it moves from `failed` to `lost`); elsewhere its error stands."""
        self.lose(answers.lost, asked)
        for name, error in list(answers.failed.items()):
            seat = self.seats.get(name)
            if not isinstance(error, EngineEndedError) or seat is None or seat.guest:
                continue
            if self._restart is not None and self._left > 0 and seat.engine is asked[name]:
                del answers.failed[name]
                answers.lost[name] = _without_engine(name, error)
                self.lose({name: answers.lost[name]}, asked)

    def lose(self, lost: Mapping[str, WorkerLostError], asked: Mapping[str, RolloutEngine]) -> None:
        """Take replicas out whose process is gone, and have them made anew as long as `restarts` lasts.

        Args:
            asked: the engines that this was learnt from; a successor that came meanwhile is none of them.
        """
        for name, error in lost.items():
            if name not in self.seats or self.seats[name].engine is not asked[name]:
                continue
            seat = self.seats.pop(name)
            self._trouble = self._dead[name] = error
            again = self._restart is not None and self._left > 0 and not seat.guest
            log.warning("%s (%s)", error.problem, "it is started again" if again else "it is not started again")
            if self._restart is not None and again:
                self._left -= 1
                self._coming[name] = self._threads.submit(self._restart, name)

    def collect(self) -> None:
        """Let those join that have been made meanwhile."""
        for name, future in list(self._coming.items()):
            if not future.done():
                continue
            del self._coming[name]
            try:
                engine = future.result()
            except OmniPortableError as error:
                self._trouble = error
                log.warning("rollout replica '%s' could not be started again: %s", name, error.problem)
                continue
            self.restarted += 1
            self.join(name, engine)

    def complete(self) -> None:
        """Wait for those that are being made, and let them join."""
        while self._coming:
            wait(self._coming.values())
            self.collect()

    def latest(self) -> Latest:
        """The weights that all hold.

        Raises:
            LifecycleError: none were kept.
        """
        if self._latest is None:
            raise LifecycleError(
                "the router has kept no weights", remedy="make it with keep=True, and update the replicas first"
            )
        return self.version, NamedTensorStream(*self._latest)

    def admit(self, name: str, engine: RolloutEngine) -> None:
        """Give a seat to a lent engine that runs with the present weights.

        Raises:
            LifecycleError: the name is taken, or the others do not run.
            WeightSyncError: it holds another version.
        """
        if name in self.seats:
            raise LifecycleError(f"there is a rollout replica '{name}' already", remedy="use another name")
        self.require_running()
        health = engine.health()
        check_acks({name: Ack("health", health.policy_version)}, "health", self.version)
        self.seats[name] = Seat(name, engine, guest=True)

    def join(self, name: str, engine: RolloutEngine) -> None:
        """Bring a running engine to the present version and state, then give it a seat.

        Raises:
            LifecycleError: the name is taken, or the engine refuses.
            WeightSyncError: it does not take the weights.
        """
        if name in self.seats:
            raise LifecycleError(f"there is a rollout replica '{name}' already", remedy="use another name")
        self.seats[name] = Seat(name, engine)
        try:
            self._line_up(name, engine)
        except WorkerLostError as error:
            self.lose({name: error}, {name: engine})
        except EngineEndedError as error:
            self.lose({name: _without_engine(name, error)}, {name: engine})
        except BaseException:
            del self.seats[name]
            raise
        else:
            log.info("rollout replica '%s' joined at policy version %d", name, self.version)

    def take_back(self, ahead: Sequence[RolloutEngine]) -> list[str]:
        """Bring replicas that applied an update which others could not back to the version that all held: with the
        weights that the engine itself has kept, else with the copy here.

        One that cannot go back stays paused and draws nothing; an update under a further version reaches it.

        Returns:
            A phrase for each of those, with the reason.
        """
        engines = {name: seat.engine for name, seat in self.seats.items() if seat.engine in ahead}
        answers = call_all(engines, self._go_back)
        self.settle(answers, engines)
        stayed = [
            f"rollout replica '{name}' took the update and did not go back to policy version {self.version}: "
            f"{error.problem if isinstance(error, OmniPortableError) else repr(error)}"
            for name, error in answers.failed.items()
        ]
        for phrase in stayed:
            log.warning("%s", phrase)
        if answers.done:
            log.info("back at policy version %d: %s", self.version, ", ".join(answers.done))
        return stayed

    def _go_back(self, engine: RolloutEngine) -> None:
        if not isinstance(engine, RecallableUpdates):
            raise LifecycleError(f"the rollout engine '{engine.name}' cannot take a weight update back")
        ack = engine.recall_weights(self.version)
        if not ack.ok:
            if self._latest is None:
                raise LifecycleError(f"neither it nor the trainer has a copy of those weights ({ack.detail})")
            ack = engine.update_weights(NamedTensorStream(*self._latest), self.version)
        if ack.policy_version != self.version:
            raise WeightSyncError(f"it holds version {ack.policy_version} now")

    def _line_up(self, name: str, engine: RolloutEngine) -> None:
        engine.pause()
        if self._latest is not None:
            manifest, tensors = self._latest
            ack = engine.update_weights(NamedTensorStream(manifest, tensors), self.version)
            check_acks({name: ack}, "update_weights", self.version)
        if self.state is EngineState.RUNNING:
            engine.resume()
        elif self.level:
            engine.sleep(self.level)
            if self.woken:
                engine.wake(tuple(self.woken))

    def remember(self, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """All hold these weights now."""
        self.version = version
        if self.keeps:
            self._latest = manifest, {name: kept(tensor) for name, tensor in tensors.items()}

    def woke(self, tags: Sequence[str]) -> None:
        """All have woken these tags; they are paused as soon as their weights are awake."""
        self.woken += tags
        if "weights" in self.woken:
            self.state = EngineState.PAUSED

    def absent(self, name: str) -> OmniPortableError:
        """Why there is no replica of this name."""
        return self._dead.get(name) or LifecycleError(
            f"there is no rollout replica '{name}'", choices=tuple(self.seats)
        )

    def require_running(self) -> None:
        """
        Raises:
            LifecycleError: the replicas are paused or asleep.
        """
        if self.state is not EngineState.RUNNING:
            raise LifecycleError(
                f"the rollout replicas are {self.state.value} and cannot generate now", remedy="resume them first"
            )

    def require_some(self) -> None:
        """
        Raises:
            WorkerLostError: no replica lives or is coming.
        """
        if not self.seats and not self._coming:
            why = self._trouble.problem if self._trouble else "there was none"
            raise WorkerLostError(
                f"no rollout replica is left: {why}",
                remedy="look into logs/ of the run directory, or allow more restarts (launcher.restarts); the run can "
                "be continued from its last checkpoint",
            ) from self._trouble

    def on_change(self, call: Callable[[], object]) -> None:
        """Have `call` called, from another thread, whenever one of those that are being made is ready."""
        for future in list(self._coming.values()):
            future.add_done_callback(lambda _: call())

    def close(self) -> None:
        """Give up what is being made."""
        give_up({future: name for name, future in self._coming.items()}, self._abandon)
        self._threads.shutdown(wait=True)


def _without_engine(name: str, error: EngineEndedError) -> WorkerLostError:
    return WorkerLostError(f"rollout replica '{name}': {error.problem}", remedy=error.remedy)
