"""The train engine's side of a weight sync: announce, stream buckets, apply everywhere, or undo everywhere."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from omni_backends.sync.buckets import aligned, buckets, whole_size
from omni_backends.sync.calls import call_workers, same_answer
from omni_backends.sync.channel import Filled, SendChannel, open_sender
from omni_backends.sync.report import Call, SyncReport
from omni_backends.sync.wire import ALIGNMENT, Announcement, Bucket
from omni_portable.contracts.errors import ConfigError, EngineEndedError, OmniPortableError, WeightSyncError
from omni_portable.contracts.weights import WeightStream

DEFAULT_BUCKET_BYTES = 16 << 20
LEAST_BUCKET_BYTES = 4096


def send_weights(
    stream: WeightStream,
    call: Call,
    *,
    version: int,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    channel: str | SendChannel = "shared_memory",
    repeat: bool = False,
    device: torch.device | None = None,
) -> SyncReport:
    """Bring a stream into every worker, completely or not at all.

    `call` is used from the calling thread alone, one call at a time; the stream is read in that thread, too. Beside the
    stream's own tensors the channel holds two buckets, or one copy of the whole update, however many workers read it.

    Args:
        call: the engine's call to every worker, which inherit `ReceiverExtension`.
        version: the policy version that the stream brings.
        bucket_bytes: bound of one bucket (at least 4096); larger tensors are cut.
        channel: 'shared_memory', 'ipc', or an open channel, which stays open and is used again (new memory is slow).
            An open one has its own size of buckets.
        repeat: what the workers hold counts for nothing (lost, or recalled), and they may be sent any version.
        device: where an 'ipc' channel keeps its buckets.

    Raises:
        ConfigError: a bucket size or channel that cannot be.
        EngineEndedError: the engine's process is gone, and what it held with it.
        WeightSyncError: something failed; names worker, tensor and cause. All workers hold the old weights then, except
            where the message says that one could not put them back.
    """
    if bucket_bytes < LEAST_BUCKET_BYTES:
        raise ConfigError(f"buckets of {bucket_bytes} bytes are too small", remedy=f"use {LEAST_BUCKET_BYTES} or more")
    whole = whole_size(stream.manifest)
    opened = open_sender(channel, max(ALIGNMENT, min(aligned(bucket_bytes), whole)), device or torch.device("cpu"))
    try:
        opened.prepare(whole)
        return _Sync(stream, call, opened, version, repeat).run()
    finally:
        if opened is not channel:
            opened.close()


class _Sync:
    """One run of :func:`send_weights`."""

    def __init__(self, stream: WeightStream, call: Call, channel: SendChannel, version: int, repeat: bool) -> None:
        self._stream, self._call, self._channel = stream, call, channel
        self._version, self._repeat = version, repeat
        self._id = uuid.uuid4().hex
        self._buckets = 0

    def run(self) -> SyncReport:
        started = time.perf_counter()
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="weight-sync") as pool:
                self._bring(pool)
            committed = call_workers(self._call, "weights_commit", {"sync": self._id})
            bound = int(same_answer(committed, "bound_modules"))
            finished = call_workers(self._call, "weights_finish", {"sync": self._id})
            if same_answer(finished, "version") != self._version:
                raise WeightSyncError(f"the rollout workers hold version {finished[0]['version']} after the update")
        except BaseException as error:
            self._undo(error)
            raise
        self._channel.arrived()
        seconds = time.perf_counter() - started
        manifest = self._stream.manifest
        applying = max(float(answer["seconds"]) for answer in committed)
        return SyncReport(
            version=self._version,
            mode=manifest.mode,
            channel=self._channel.name,
            workers=len(committed),
            tensors=len(manifest.tensors),
            bytes=manifest.bytes,
            buckets=self._buckets,
            bound_modules=bound,
            seconds=seconds,
            transfer_seconds=seconds - applying,
        )

    def _bring(self, pool: ThreadPoolExecutor) -> None:
        try:
            self._begin()
            self._transfer(pool)
        except BaseException:
            self._channel.cancel()  # before the pool waits for its thread
            raise

    def _begin(self) -> None:
        announced = Announcement(self._id, os.getpid(), self._channel.describe(), self._stream.manifest)
        arguments = {"manifest": announced.encode(), "version": self._version, "repeat": self._repeat}
        call_workers(self._call, "weights_begin", arguments)

    def _transfer(self, pool: ThreadPoolExecutor) -> None:
        channel = self._channel
        cut = buckets(self._stream, self._id, channel.slot_bytes, channel.slots)
        if not channel.rendezvous:
            return self._overlapped(cut, pool)
        for bucket, filled in cut:
            delivered = pool.submit(channel.deliver, filled)
            self._announce(bucket)
            delivered.result()
        return None

    def _overlapped(self, cut: Iterator[tuple[Bucket, Filled]], pool: ThreadPoolExecutor) -> None:
        """While the workers read one bucket, the next is filled (in a thread: copies leave the interpreter to us)."""
        ready: Bucket | None = None
        for bucket, filled in cut:
            filling = pool.submit(self._channel.deliver, filled)
            if ready is not None:
                self._announce(ready)
            filling.result()
            ready = bucket
        if ready is not None:
            self._announce(ready)

    def _announce(self, bucket: Bucket) -> None:
        self._buckets += 1
        call_workers(self._call, "weights_bucket", {"header": bucket.encode()})

    def _undo(self, error: BaseException) -> None:
        """Make every worker drop the update; what cannot be undone is added to the error. Workers that are gone hold
        nothing."""
        if isinstance(error, EngineEndedError):
            return
        reason = error.problem if isinstance(error, OmniPortableError) else repr(error)
        try:
            answers = call_workers(self._call, "weights_discard", {"sync": self._id, "reason": reason[:500]})
            for rank, answer in enumerate(answers):
                if answer.get("version") == self._version and not self._repeat:
                    raise WeightSyncError(f"rollout worker {rank} has ended its update to version {self._version}")
        except WeightSyncError as second:
            raise WeightSyncError(
                f"{reason}; and the update could not be undone everywhere: {second.problem}",
                remedy="start the run again with --resume: the engine's workers may hold different weights",
            ) from error
        if isinstance(error, OmniPortableError) or not isinstance(error, Exception):
            return
        raise WeightSyncError(f"the weight update broke off: {error!r}") from error
