"""Several replicas of a rollout engine as one: who draws what, and what happens when a replica dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import torch

from omni_portable.contracts.errors import LifecycleError, WorkerLostError
from omni_portable.contracts.lifecycle import Ack, EngineState
from omni_portable.contracts.rollout import EngineHealth, RolloutEngine, RolloutResult, StagedUpdates
from omni_portable.contracts.tokens import AnyRequest, AnyTrajectory, TokenRequest
from omni_portable.contracts.weights import PiecewiseStream, WeightManifest, WeightStream
from omni_portable.models.weights import NamedTensorStream
from omni_portable.rollout.crew import Crew, Latest
from omni_portable.rollout.fanout import (
    Answers,
    call_all,
    check_acks,
    joined_ack,
    joined_statistics,
    same_checksums,
    with_more,
)
from omni_portable.rollout.inflight import InFlight, Outcome, Ticket
from omni_portable.rollout.relay import Relay
from omni_portable.rollout.seats import Seat, choose

Answer = TypeVar("Answer")
Item = tuple[AnyRequest, Ticket]


class Router:
    """A `RolloutEngine` over replicas. All methods are called from the thread of one event loop.

    `generate` hands pieces to the least loaded replica (see :mod:`seats`). A piece whose replica dies is handed to
    another: nothing of it was returned, and the same requests give the same samples. Lifecycle calls go to all
    replicas at once; every one of them must acknowledge, and a failure names its replica. A replica that turns out to
    be dead leaves, and a fresh one joins at the present policy version. Outside `generate`, in which an engine starts
    its own processes again, one whose processes are gone is replaced likewise.

    Args:
        replicas: name -> engine, all in the same state and at the same version.
        piece_size: requests of one `generate` that go to one replica together; with a single replica, all of them.
        capacity: pieces that one replica is given at a time.
        attempts: times that a piece is handed out at most.
        restart: makes a new engine for a name whose process is gone; None where lost replicas stay away.
        restarts: of all replicas together.
        abandon: ends what `restart` is making of this name, so that nobody waits for it.
        keep: remember the last weights on the host even where nothing is restarted, for :meth:`latest`.
    """

    def __init__(
        self,
        replicas: Mapping[str, RolloutEngine],
        *,
        piece_size: int = 0,
        capacity: int = 1,
        attempts: int = 2,
        restart: Callable[[str], RolloutEngine] | None = None,
        restarts: int = 0,
        keep: bool = False,
        abandon: Callable[[str], object] | None = None,
    ) -> None:
        self.name = next(iter(replicas.values())).name
        self._piece_size = piece_size if len(replicas) > 1 else 0
        self._capacity, self._attempts = capacity, attempts
        self._crew = Crew(replicas, restart, restarts, keep, abandon)
        self._inflight = InFlight()
        self._waiting: list[asyncio.Future[None]] = []
        self._resubmitted = 0
        self._own_restarts = 0.0  # of engines whose replica lived on

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of those that may be given work."""
        return tuple(self._crew.seats)

    def join(self, name: str, engine: RolloutEngine) -> None:
        """Take a running engine in: it is paused, brought to the present version, and to the state of the others."""
        self._crew.join(name, engine)
        self._notify()

    def latest(self) -> Latest:
        """The version that all hold, and its weights; see `keep`."""
        return self._crew.latest()

    def admit(self, name: str, engine: RolloutEngine) -> None:
        """Take in a lent engine that runs at the present version already. It is not made anew where it is lost.

        Raises:
            LifecycleError: the name is taken, or the others do not run.
            WeightSyncError: it holds another version.
        """
        self._crew.admit(name, engine)
        self._notify()

    def served(self, name: str) -> int:
        """Requests that were handed to a replica since it came; 0 where it is not here."""
        seat = self._crew.seats.get(name)
        return seat.served if seat else 0

    def leave(self, name: str) -> RolloutEngine:
        """Let a replica go; what it was drawing is aborted there and drawn by the others, which go on with responses
        where it was.

        Raises:
            LifecycleError: there is no such replica, or it is the last one (a lent one may leave even then).
            WorkerLostError: there is none of this name any more, because it died.
        """
        seat = self._crew.seats.get(name)
        if seat is None:
            raise self._crew.absent(name)
        if len(self._crew.seats) == 1 and not seat.guest:
            raise LifecycleError(f"the rollout replica '{name}' cannot leave: it is the last", choices=self.replicas)
        del self._crew.seats[name]
        ack = seat.engine.abort()
        check_acks({name: ack}, "abort", self._crew.version)
        return seat.engine

    async def generate(self, requests: Sequence[AnyRequest]) -> RolloutResult:
        """Draw the requests, in pieces and side by side; trajectories come back in request order.

        Raises:
            LifecycleError: the replicas are not running, or a request id is in flight already.
            WorkerLostError: replicas died under a piece `attempts` times, or none is left.
        """
        self._crew.require_running()
        items = list(zip(requests, self._inflight.open([r.request_id for r in requests]), strict=True))
        size = self._piece_size or len(items) or 1
        pieces = [items[first : first + size] for first in range(0, len(items), size)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._piece(piece)) for piece in pieces]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._inflight.close(ticket for _, ticket in items)
        done = {name: trajectory for task in tasks for name, trajectory in task.result().items()}
        aborted = [ticket for _, ticket in items if ticket.outcome is Outcome.ABORTED]
        return RolloutResult(
            [done[r.request_id] for r in requests if r.request_id in done],
            tuple(ticket.request_id for ticket in aborted),
            {ticket.request_id: ticket.kept for ticket in aborted if ticket.kept is not None},
        )

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        """Discard the named requests or all, wherever they are."""
        aborted = self._inflight.abort(request_ids)
        self._notify()
        asked = None if request_ids is None else aborted
        return self._everywhere("abort", lambda engine: engine.abort(asked), aborted)

    def pause(self) -> Ack:
        """Abort everything in flight on every replica and refuse new requests."""
        aborted = self._inflight.abort()
        self._notify()
        ack = self._everywhere("pause", lambda engine: engine.pause(), aborted)
        self._crew.state = EngineState.PAUSED
        return ack

    def resume(self) -> Ack:
        """Accept requests again."""
        ack = self._everywhere("resume", lambda engine: engine.resume())
        self._crew.state, self._crew.level = EngineState.RUNNING, 0
        self._notify()
        return ack

    def sleep(self, level: int = 1) -> Ack:
        """Put every replica to sleep. One that is being made anew is waited for, and sleeps then, too: whoever takes
        their place on a device must not meet an engine that loads its model there."""
        ack = self._everywhere("sleep", lambda engine: engine.sleep(level))
        self._crew.state, self._crew.level, self._crew.woken = EngineState.ASLEEP, level, list[str]()
        self._crew.complete()
        return ack

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        """Bring the memory of every replica back; they are paused then."""
        ack = self._everywhere("wake", lambda engine: engine.wake(tags))
        self._crew.woke(tags)
        return ack

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        """Bring every replica to `version`, or none: all receive and verify first, then all apply. Where one cannot
        apply it, the others go back to the weights that they held.

        Engines that cannot stage an update receive and apply it in one.

        Raises:
            WeightSyncError: names the replica and the tensor; all stay paused, at the version they held. One that could
                not go back is named, too, with the reason.
        """
        staged, tensors = self._stage(stream, version)
        applied: list[RolloutEngine] = []

        def apply(engine: RolloutEngine) -> Ack:
            if isinstance(engine, StagedUpdates) and engine in staged:
                ack = engine.commit_weights(version)
            else:
                ack = engine.update_weights(NamedTensorStream(stream.manifest, tensors), version)
            applied.append(engine)
            return ack

        try:
            acks = self._ask(apply)
            check_acks(acks, "update_weights", version)
        except Exception as error:
            if stayed := self._crew.take_back(applied):
                raise with_more(error, stayed) from None
            raise
        self._crew.remember(stream.manifest, tensors, version)
        return joined_ack(acks, "update_weights", version)

    def _stage(self, stream: WeightStream, version: int) -> tuple[list[RolloutEngine], Mapping[str, torch.Tensor]]:
        """Have every replica that can stage receive and verify; those that did, and the tensors for others. One that
        cannot fails all.

        A stream that is made in pieces is read by all at once where all can stage, and its tensors are at hand
        afterwards only if copies are kept (without, there are no others: no replica is made anew).
        """
        engines = self._crew.engines()
        able = {name: engine for name, engine in engines.items() if isinstance(engine, StagedUpdates)}
        relay, tensors = None, dict[str, torch.Tensor]()
        if isinstance(stream, PiecewiseStream) and len(able) == len(engines):
            relay = Relay(stream, len(able), keep=self._crew.keeps)
        else:
            tensors = dict(stream)
        try:
            answers = call_all(able, lambda engine: _stage(engine, relay or (stream.manifest, tensors), version))
        except BaseException:
            if relay is not None:
                relay.stop("the update was interrupted")
            raise
        self._crew.settle(answers, able)
        told, failure = list(answers.done), answers.first_failure()
        if relay is not None:
            if failure is None:
                relay.finish()
            if relay.failure is not None:
                told, failure = [name for name in able if name not in answers.lost], relay.failure
            tensors = relay.kept
        if failure is not None:
            self._crew.lose(call_all({name: able[name] for name in told}, _discard).lost, able)
            raise failure
        return [able[name] for name in answers.done], tensors

    def weights_checksum(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Checksum per tensor, the same on every replica.

        Raises:
            WeightSyncError: two replicas hold different weights.
        """
        wanted = None if names is None else list(names)
        return same_checksums(self._ask(lambda engine: engine.weights_checksum(wanted)))

    def health(self) -> EngineHealth:
        """State and version of all; what each replica says is in the detail."""
        engines = self._crew.engines()
        answers = call_all(engines, lambda engine: engine.health())
        self._crew.lose(answers.lost, engines)
        detail = {name: f"{h.state.value}, version {h.policy_version}" for name, h in answers.done.items()}
        detail |= {name: f"no answer: {error}" for name, error in answers.failed.items()}
        return EngineHealth(self._crew.state, self._crew.version, len(self._inflight), detail)

    def statistics(self) -> dict[str, float]:
        """Figures of all replicas since the last call, and of the router itself."""
        found = self._ask(lambda engine: engine.statistics())
        joined = joined_statistics(list(found.values()))
        self._own_restarts += joined.get("perf/rollout/restarts", 0.0)
        own = {
            "perf/rollout/replicas": float(len(self._crew.seats)),
            "perf/rollout/resubmitted": float(self._resubmitted),
            "perf/rollout/restarts": self._crew.restarted + self._own_restarts,
        }
        self._resubmitted = 0
        return joined | own

    def close(self) -> None:
        """Give up what is being restarted; the replicas themselves belong to their launcher."""
        self._crew.close()

    async def _piece(self, items: Sequence[Item]) -> dict[str, AnyTrajectory]:
        """Finished trajectories by request id; what was aborted is missing."""
        done: dict[str, AnyTrajectory] = {}
        lost: list[WorkerLostError] = []
        while left := [item for item in items if item[1].outcome is Outcome.PENDING]:
            if len(lost) == self._attempts:
                raise self._given_up(left, lost) from lost[-1]
            seat = await self._seat(left)
            if seat is None:
                break
            try:
                with seat.serving([request.prompt_id for request, _ in left]):
                    result = await seat.engine.generate([_so_far(request, ticket) for request, ticket in left])
            except WorkerLostError as error:
                self._crew.lose({seat.name: error}, {seat.name: seat.engine})
                lost.append(error)
                self._resubmitted += len(left)
                continue
            except LifecycleError:
                if all(ticket.outcome is Outcome.ABORTED for _, ticket in left):
                    break  # the pause overtook the requests on their way
                raise
            finally:
                self._notify()
            self._take(result, dict((r.request_id, ticket) for r, ticket in left), done, seat)
        return done

    def _take(
        self, result: RolloutResult, tickets: Mapping[str, Ticket], done: dict[str, AnyTrajectory], seat: Seat
    ) -> None:
        for name, partial in result.partials.items():
            tickets[name].kept = partial
        for trajectory in result.trajectories:
            ticket = tickets[trajectory.request.request_id]
            if ticket.outcome is Outcome.PENDING:
                self._inflight.finish(ticket)
                done[ticket.request_id] = trajectory
        if self._crew.seats.get(seat.name) is seat:  # it is still here: whoever aborted these meant them
            self._inflight.abort(result.aborted)

    async def _seat(self, items: Sequence[Item]) -> Seat | None:
        """A seat with room, as soon as there is one; None once everything was aborted."""
        loop = asyncio.get_running_loop()
        prompts = [request.prompt_id for request, _ in items]
        while any(ticket.outcome is Outcome.PENDING for _, ticket in items):
            self._crew.collect()
            self._crew.require_some()
            if (seat := choose(self._crew.seats.values(), prompts, self._capacity)) is not None:
                return seat
            changed = loop.create_future()
            self._waiting.append(changed)
            self._crew.on_change(lambda: _tell(loop, self._notify))
            await changed
        return None

    def _notify(self) -> None:
        """Whoever waits for a seat looks again, in the order of arrival."""
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    def _everywhere(self, operation: str, call: Callable[[RolloutEngine], Ack], aborted: Sequence[str] = ()) -> Ack:
        acks = self._ask(call)
        check_acks(acks, operation, self._crew.version)
        return joined_ack(acks, operation, self._crew.version, aborted)

    def _ask(self, call: Callable[[RolloutEngine], Answer]) -> dict[str, Answer]:
        """Answers of all living replicas; where the last one died under the call, its successor was brought in line
        and is asked in its place."""
        while True:
            engines = self._crew.engines()
            answers: Answers[Answer] = call_all(engines, call)
            self._crew.settle(answers, engines)
            if (failure := answers.first_failure()) is not None:
                raise failure
            if answers.done:
                return answers.done

    @staticmethod
    def _given_up(items: Sequence[Item], lost: Sequence[WorkerLostError]) -> WorkerLostError:
        return WorkerLostError(
            f"{len(items)} rollout requests (the first: '{items[0][0].request_id}') lost their replica {len(lost)} "
            f"times; the last time: {lost[-1].problem}",
            remedy="look into logs/ of the run directory for what ends the replicas, or allow more (rollout.attempts)",
        )


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have the loop call it, from another thread; where the run was stopped meanwhile, nobody waits any more."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call)


def _so_far(request: AnyRequest, ticket: Ticket) -> AnyRequest:
    """The request, going on after what a replica that left had drawn of it."""
    return request.after(ticket.kept) if isinstance(request, TokenRequest) else request


def _stage(
    engine: RolloutEngine, source: Relay | tuple[WeightManifest, Mapping[str, torch.Tensor]], version: int
) -> Ack:
    assert isinstance(engine, StagedUpdates)
    if not isinstance(source, Relay):
        return engine.stage_weights(NamedTensorStream(*source), version)
    with source.reading() as stream:
        return engine.stage_weights(stream, version)


def _discard(engine: RolloutEngine) -> Ack:
    assert isinstance(engine, StagedUpdates)
    return engine.discard_weights()
