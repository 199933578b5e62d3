"""A rollout engine in another process, as its trainer sees it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from omni_backends.launch.ray.media import rejoined, with_prompts
from omni_backends.launch.ray.tensors import Bundle, reference_of, sources_of
from omni_backends.launch.ray.wire import value
from omni_backends.launch.ray.worker import SilentError, Worker, objects_named
from omni_portable.contracts.errors import WeightSyncError, WorkerLostError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.rollout import EngineHealth, RolloutResult
from omni_portable.contracts.weights import PiecewiseStream, WeightStream
from omni_portable.rollout.codec import pack
from omni_portable.rollout.distant import Bundles


def buckets(stream: Iterable[tuple[str, torch.Tensor]], limit: int) -> Iterator[dict[str, torch.Tensor]]:
    """Consecutive tensors of a stream, together at most `limit` bytes (a larger one alone)."""
    held: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in stream:
        more = tensor.numel() * tensor.element_size()
        if held and size + more > limit:
            yield held
            held, size = {}, 0
        held[name] = tensor
        size += more
    if held:
        yield held


def bounded(stream: WeightStream, limit: int) -> Iterator[dict[str, torch.Tensor]]:
    """The :func:`buckets` of a stream; of one that is made in pieces, those of each piece, which is let go of before
    the next is made."""
    if not isinstance(stream, PiecewiseStream):
        yield from buckets(stream, limit)
        return
    for piece in stream.pieces():
        yield from buckets(piece.items(), limit)
        del piece


Answer = TypeVar("Answer")


class RemoteRolloutEngine:
    """`RolloutEngine`, `StagedUpdates` and `RecallableUpdates` over a worker; arguments and answers travel as packed
    bytes, large media stay in the object store (see :mod:`media`).

    Every call but `generate` waits for its acknowledgement. All raise `WorkerLostError` once the process is gone.

    Args:
        worker / name: the process and its engine.
        bucket_bytes: weights are sent in pieces of at most this size.
        least: bytes from which on media of a sample stay in the object store; 0: none do.
        tensors: large tensors of samples stay there too (see :mod:`tensors`).
    """

    def __init__(self, worker: Worker, name: str, bucket_bytes: int, least: int, tensors: bool = False) -> None:
        self.name = name
        self._worker, self._bucket_bytes, self._least, self._tensors = worker, bucket_bytes, least, tensors and least
        self._numbers = itertools.count(1)
        self._last = 0
        self._out: dict[int, tuple[str, ...]] = {}

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        number = self._last = next(self._numbers)
        ids = self._out[number] = tuple(request.request_id for request in requests)
        try:
            blob = await asyncio.to_thread(pack, list(requests))
            groups = [request.group_id for request in requests] if self._tensors else []
            media = len(ids) if self._least else 0
            extra = media + (sources_of(groups) if groups else 0)
            asked = ("generate", number, blob, list(ids), self._least, groups)
            answer, *objects = await self._watched(self._worker.asked_apart(*asked, extra=extra))
            parcels = dict(zip(ids, objects[:media], strict=bool(media)))
            sources = [Bundle(reference, self._worker.bring) for reference in objects[media:]]
            result, names, left = await asyncio.to_thread(value, answer, self._worker.label, sources)
        except asyncio.CancelledError:  # nobody waits any more: the worker need not go on, nor be waited for
            self._worker.actor.abort.remote(number, pack([[number, name] for name in ids]))
            raise
        finally:
            del self._out[number]
        return rejoined(with_prompts(result, left, requests), names, parcels, self._worker)

    async def _watched(self, drawing: Coroutine[Any, Any, Answer]) -> Answer:
        """Drawing may take as long as it does; a worker that does not even say how it is meanwhile hangs, and is ended.

        Raises:
            WorkerLostError: it hangs, or is gone.
        """
        task = asyncio.ensure_future(drawing)
        try:
            while not (await asyncio.wait([task], timeout=self._worker.patience_s))[0]:
                await asyncio.to_thread(self.health)
            return await task
        finally:
            task.cancel()

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        pairs = None
        if request_ids is not None:
            wanted = set(request_ids)
            pairs = [[number, name] for number, ids in self._out.items() for name in ids if name in wanted]
        return self._ask("abort", self._last, pack(pairs))

    def pause(self) -> Ack:
        return self._ask("pause", self._last)

    def resume(self) -> Ack:
        return self._control("resume")

    def sleep(self, level: int = 1) -> Ack:
        return self._control("sleep", level=level)

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        return self._control("wake", tags=list(tags))

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        """Stage the whole stream there, then have the engine verify and apply it."""
        self.stage_weights(stream, version)
        return self.commit_weights(version)

    def stage_weights(self, stream: WeightStream, version: int) -> Ack:
        started = time.perf_counter()
        self._ask("stage", pack(stream.manifest), version)
        for bucket in bounded(stream, self._bucket_bytes):
            self._send(bucket)
            del bucket
        received = self._ask("seal")
        return Ack("stage_weights", version, received, time.perf_counter() - started)

    def commit_weights(self, version: int) -> Ack:
        return self._ask("commit", version)

    def discard_weights(self) -> Ack:
        return Ack("discard_weights", self._ask("discard"))

    def recall_weights(self, version: int) -> Ack:
        return self._ask("recall", version)

    def weights_checksum(self, names: Iterable[str] | None = None) -> dict[str, str]:
        return dict(self._control("weights_checksum", names=None if names is None else list(names)))

    def health(self) -> EngineHealth:
        health: EngineHealth = self._ask("health")
        return health

    def statistics(self) -> dict[str, float]:
        return dict(self._control("statistics"))

    def _send(self, bucket: dict[str, torch.Tensor]) -> None:
        """Some tensors of an update; those in the object store go by reference, and the worker reads them there."""
        bundles = Bundles()
        blob = pack(bucket, bundles)
        gone = (
            f"the tensor '{next(iter(bucket))}' and {len(bucket) - 1} more that went with it are gone from the "
            "cluster's object store"
        )
        remedy = "a machine was lost, or its object store: trainer.sync_attempts above 1 sends the weights again"
        with objects_named(WeightSyncError, gone, remedy):
            self._ask("bucket", blob, *map(reference_of, bundles.sources))

    def _control(self, operation: str, **arguments: Any) -> Any:
        return self._ask("control", operation, pack(arguments))

    def _ask(self, method: str, *arguments: Any) -> Any:
        """As `Worker.ask`; a worker that does not answer is ended, and so lost like one that died."""
        try:
            return self._worker.ask(method, *arguments)
        except SilentError as error:
            self._worker.kill()
            raise WorkerLostError(error.problem, remedy=error.remedy) from error
