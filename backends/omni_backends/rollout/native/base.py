"""What rollout engines in this process share: lifecycle, weights, aborts, and control that returns between steps.

Nothing here knows what a pack of requests computes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Generic, TypeVar, cast

import torch

from omni_backends.rollout.native import NativeOptions
from omni_backends.rollout.native.weights import PolicyWeights
from omni_portable.config.loader import plugin_options
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import LifecycleError, ModelError, WeightSyncError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Conditioning, EngineHealth, Extent, RolloutResult
from omni_portable.contracts.tokens import AnyTrajectory
from omni_portable.contracts.weights import LoraInfo, WeightStream
from omni_portable.models.lora_file import inject_configured_lora
from omni_portable.models.setup import EngineSetup, PolicyAdapter
from omni_portable.rollout.inflight import InFlight, Outcome, Ticket
from omni_portable.rollout.lifecycle import NOT_KEPT, Lifecycle
from omni_portable.rollout.prompt_cache import PromptCache
from omni_portable.rollout.statistics import RolloutStatistics

COUNTERS = ("requests", "forwards", "aborted", "prompt_cache/hits", "prompt_cache/misses")

AdapterT = TypeVar("AdapterT", bound=PolicyAdapter)
RequestT = TypeVar("RequestT")
PackT = TypeVar("PackT")


class NothingLeft(Exception):  # noqa: N818 - control flow of one pack, never seen by a caller
    """Every request of a pack was aborted."""


class InProcessEngine(ABC, Generic[AdapterT, RequestT, PackT]):
    """A rollout engine (see `contracts.rollout.RolloutEngine`) that shares the process and the device with its caller.

    `generate` gives control back to the event loop between pieces of work (denoising steps, tokens), so other tasks may
    abort or pause it. One lock is held during each piece: a call from another thread waits for the present one to end,
    and once `pause` has returned nothing computes any more.

    Args:
        setup: configuration, device and how to load the model; the engine loads its own copy.
        components: of the model, beside the policy itself.
    """

    name = "native"

    def __init__(self, setup: EngineSetup, components: tuple[str, ...]) -> None:
        config = setup.config
        self._options: NativeOptions = plugin_options(
            "rollout_engine", self.name, config.rollout.options, key="rollout.options"
        )
        self._max_num_seqs = config.rollout.max_num_seqs
        self._setup = setup
        self._adapter = self._load_model(setup, components)
        module = self._adapter.transformer
        self._weights = PolicyWeights(module, self._inject(self._adapter))
        module.eval().requires_grad_(False)
        self._pool = setup.device.memory.pool("rollout")
        self._pool.register("weights", module)
        self._cache = PromptCache(config.rollout.prompt_cache_size, self._encode)
        self._lifecycle = Lifecycle(self.name)
        self._former: tuple[int, dict[str, torch.Tensor]] | None = None
        """Version and weights that the last update replaced, until the engine is resumed."""
        self._inflight = InFlight()
        self._statistics = RolloutStatistics(COUNTERS)
        self._lock = threading.RLock()

    @abstractmethod
    def _load_model(self, setup: EngineSetup, components: tuple[str, ...]) -> AdapterT:
        """The run's model with the named components only."""

    @abstractmethod
    def _encode(self, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        """One prompt as the policy reads it, on the host."""

    @abstractmethod
    def _plan(self, requests: Sequence[RequestT]) -> Sequence[PackT]:
        """Check the requests and say which of them run together."""

    @abstractmethod
    async def _run(
        self, pack: PackT, requests: Sequence[RequestT], tickets: Sequence[Ticket], version: int
    ) -> Mapping[int, AnyTrajectory]:
        """Carry out one pack; position -> trajectory of those that were not aborted."""

    async def generate(self, requests: Sequence[RequestT]) -> RolloutResult:
        """Run the requests in packs of at most rollout.max_num_seqs; trajectories come back in request order.

        Raises:
            LifecycleError: the engine is not running, or a request id is in flight already.
            ConfigError: a request that cannot be carried out.
            NonFiniteError: a sample with values that are not finite.
        """
        with self._lock:
            self._lifecycle.require("generate")
            packs = self._plan(requests)
            tickets = self._inflight.open([request.request_id for request in requests])  # type: ignore[attr-defined]
            version = self._lifecycle.policy_version
            self._statistics.count("requests", len(requests))
        finished: dict[int, AnyTrajectory] = {}
        try:
            for pack in packs:
                try:
                    finished.update(await self._run(pack, requests, tickets, version))
                except NothingLeft:
                    continue
        finally:
            with self._lock:
                self._inflight.close(tickets)
        aborted = [ticket for ticket in tickets if ticket.outcome is Outcome.ABORTED]
        return RolloutResult(
            [finished[row] for row in sorted(finished)],
            tuple(ticket.request_id for ticket in aborted),
            {ticket.request_id: ticket.kept for ticket in aborted if ticket.kept is not None},
        )

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        """Discard the named requests, or all in flight; ids that are not in flight are left alone.

        The Ack names what was aborted; `generate` returns without it. The others keep their batch shape.
        """
        with self._operation("abort") as started:
            return self._ack("abort", started, aborted=self._abort(request_ids))

    def pause(self) -> Ack:
        """Abort everything in flight and refuse new requests; nothing computes once this has returned."""
        with self._operation("pause") as started:
            aborted = self._abort(None)
            self._lifecycle.paused()
            return self._ack("pause", started, aborted=aborted)

    def resume(self) -> Ack:
        """Accept requests again."""
        with self._operation("resume") as started:
            self._lifecycle.resumed()
            self._former = None
            return self._ack("resume", started)

    def sleep(self, level: int = 1) -> Ack:
        """Release the policy's memory (encoders, VAE and cached prompts stay).

        Level 1 keeps a copy off the device; after level 2 the weights must be updated before the engine may resume.
        """
        with self._operation("sleep") as started:
            self._lifecycle.require_level(level)
            try:
                slept = self._pool.sleep(level, ("weights",))
            except LifecycleError:
                self._undo_sleep(level)
                raise
            self._lifecycle.slept(level)
            return self._ack("sleep", started, moved=slept.bytes, detail=f"level {level}; {slept.detail}".rstrip("; "))

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        """Bring the policy's memory back; the engine is paused then."""
        with self._operation("wake") as started:
            wanted = cast(tuple[SleepTag, ...], self._lifecycle.require_tags(tags))
            woken = self._pool.wake(wanted)
            self._lifecycle.woke(wanted)
            return self._ack("wake", started, moved=woken.bytes, detail=woken.detail)

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        """Receive and verify the whole stream, then apply it; completely or not at all.

        Raises:
            LifecycleError: the engine is not paused.
            WeightSyncError: the version is not newer, the stream does not fit its manifest or this engine, or applying
                it failed; weights and version are then the old ones and the engine stays paused.
        """
        with self._operation("update_weights") as started:
            self._lifecycle.require_version(version)
            tensors = self._weights.receive(stream)
            if self._lifecycle.weights_lost:
                self._restore_base()
            self._former = None
            former = self._weights.replace(tensors)
            if not self._lifecycle.repeats:
                self._former = self._lifecycle.policy_version, former
            self._lifecycle.updated(version)
            detail = f"{len(tensors)} tensors; {self._weights.describe()}"
            return self._ack("update_weights", started, moved=stream.manifest.bytes, detail=detail)

    def recall_weights(self, version: int) -> Ack:
        """See `contracts.rollout.RecallableUpdates`."""
        with self._operation("recall_weights") as started:
            self._lifecycle.recalled(version)
            former, self._former = self._former, None
            if former is None or former[0] != version:
                return replace(self._ack("recall_weights", started, detail=NOT_KEPT), ok=False)
            self._weights.replace(former[1])
            self._lifecycle.went_back()
            moved = sum(tensor.numel() * tensor.element_size() for tensor in former[1].values())
            return self._ack("recall_weights", started, moved=moved, detail="put back")

    def weights_checksum(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Checksum per tensor of what the engine holds: of all that updates replace, or of the named ones."""
        with self._operation("weights_checksum"):
            return self._weights.checksums(names)

    def health(self) -> EngineHealth:
        """State, version and requests in flight; never waits for a piece of work."""
        detail = {"legal": self._lifecycle.legal(), "cached_prompts": self._cache.statistics().entries}
        return EngineHealth(self._lifecycle.state, self._lifecycle.policy_version, len(self._inflight), detail)

    def statistics(self) -> dict[str, float]:
        """``perf/rollout/...`` metrics since the last call: achieved batch sizes, forwards, cache look-ups, seconds."""
        with self._lock:
            return self._statistics.take()

    async def _turn(self, tickets: Sequence[Ticket], stage: str) -> AbstractContextManager[None]:
        """Let other tasks run, then hold the engine for one piece of work on behalf of `tickets`."""
        await asyncio.sleep(0)
        return self._working(tickets, stage)

    @contextmanager
    def _working(self, tickets: Sequence[Ticket], stage: str) -> Iterator[None]:
        with self._lock, torch.no_grad(), self._statistics.timed(stage):
            if all(ticket.outcome is not Outcome.PENDING for ticket in tickets):
                raise NothingLeft
            yield

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

    def _abort(self, request_ids: Iterable[str] | None) -> tuple[str, ...]:
        aborted = self._inflight.abort(request_ids)
        self._statistics.count("aborted", len(aborted))
        return aborted

    def _conditioning(self, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        hits = self._cache.statistics().hits
        found = self._cache.get(prompt, media, extent)
        hit = self._cache.statistics().hits > hits
        self._statistics.count("prompt_cache/hits" if hit else "prompt_cache/misses")
        return found

    def _inject(self, adapter: AdapterT) -> LoraInfo | None:
        config = self._setup.config
        return inject_configured_lora(adapter, config.model.lora, config.trainer.seed)

    def _undo_sleep(self, level: int) -> None:
        """After a failed sleep: wake what the pool left asleep, and remember where that lost the weights."""
        try:
            self._pool.wake(("weights",))
        except LifecycleError:
            return  # the pool put nothing to sleep
        self._lifecycle.slept(level)
        self._lifecycle.woke(("weights",))

    def _restore_base(self) -> None:
        """After sleep level 2, what updates do not bring (a LoRA's base, buffers) comes from the model folder again."""
        on_host = replace(self._setup.load, torch_device=torch.device("cpu"))
        try:
            adapter = self._load_model(replace(self._setup, load=on_host), ("transformer",))
        except ModelError as error:
            raise WeightSyncError(
                f"the base weights that sleep level 2 discarded cannot be read again: {error.problem}",
                remedy="put the model folder back and repeat the update, or use rollout.sleep_level=1",
            ) from error
        self._inject(adapter)
        self._weights.restore_base(adapter.transformer)
