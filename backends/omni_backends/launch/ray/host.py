"""What runs in a worker's process: one role, its log, and calls that answer with packed bytes."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
import torch

from omni_backends.launch.local import builder
from omni_backends.launch.ray.media import Names, completed, separated, without_prompts
from omni_backends.launch.ray.tensors import Outbox, Outgoing, Parts, thinned, thinned_outputs
from omni_backends.launch.ray.wire import answered
from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.launcher import Role
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.reward import ComposedReward
from omni_portable.contracts.rollout import RecallableUpdates, RolloutResult
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.contracts.weights import WeightManifest
from omni_portable.models.weights import NamedTensorStream, receive
from omni_portable.rollout.codec import unpack
from omni_portable.rollout.distant import Bundles, Rows

log = logging.getLogger(__name__)

LOG_PART = 1 << 20
"""Bytes of a log that are fetched at a time."""


def versions() -> dict[str, str]:
    """What must be the same on both sides."""
    return {"omni-portable": version("omni-portable"), "torch": torch.__version__, "python": platform.python_version()}


def node_address() -> str:
    """The address by which the cluster knows this machine (of a cluster on loopback, that)."""
    here = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == here)


class _Lossy(io.FileIO):
    """A file that drops what it has no room for: a scorer that prints must not fail because the disk is full."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def printed(descriptor: int) -> io.TextIOWrapper:
    """A stream for `print`, which cannot fail for what is printed or where to."""
    raw = _Lossy(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=True
    )


class Host:
    """One role. The role is built and called on one thread, that of an event loop; the calls of this class come from
    any thread, and those that do not need the role answer while it works."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="role", daemon=True).start()
        self._role: Any = None
        self._log = Path(os.devnull)

    def open_log(self, path: str, proof: str) -> bool:
        """Collect what this process prints: in `path` where this machine sees the file `proof` (that is, shares the
        run directory), else in a file of its own that :meth:`read_log` gives out. Whether it is shared."""
        shared = bool(path) and Path(proof).is_file()
        self._log = Path(path) if shared else Path(tempfile.mkdtemp(prefix="omni-portable-")) / "log"
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        os.close(descriptor)
        sys.stdout, sys.stderr = printed(1), printed(2)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", force=True)
        return shared

    def read_log(self, start: int) -> bytes:
        """What was printed from byte `start` on, LOG_PART bytes at most."""
        with open(self._log, "rb") as file:
            file.seek(start)
            return file.read(LOG_PART)

    def build(self, blob: bytes) -> bytes:
        """Build the role from a packed {name, build, config, replica, arguments}; what it calls itself, and
        :func:`versions`."""

        def make() -> dict[str, Any]:
            role = Role(**unpack(blob))
            self._role = builder(role)(role.config, **role.arguments)
            log.info("'%s' is ready in process %d", role.label, os.getpid())
            facts = {"versions": versions(), "pid": os.getpid(), "address": node_address()}
            return {"name": getattr(self._role, "name", ""), **facts}

        return answered(lambda: self._call(make))

    def close(self) -> bytes:
        """Let the role close itself, where it can."""

        def close() -> None:
            if callable(done := getattr(self._role, "close", None)):
                done()

        return answered(lambda: self._call(close))

    def _call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the role's thread."""

        async def there() -> Any:
            return function()

        return self._run(there())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class RewardHost(Host):
    """A composed reward."""

    def score(self, blob: bytes, *parcels: bytes) -> bytes:
        """Packed [samples, positions] and the parcels of media that they mean -> packed `ComposedReward`; see
        :func:`media.addressed`."""

        async def score() -> ComposedReward:
            samples, positions = unpack(blob)
            reward: ComposedReward = await self._role.score_async(completed(samples, positions, parcels))
            return reward

        return answered(lambda: self._run(score()))


class TeacherHost(Host):
    """A teacher."""

    def teach(self, blob: bytes, count: int, least: int, *bundles: Parts) -> tuple[Any, ...]:
        """Packed trajectories -> packed list of `TeacherOutput`, and for each of them a bundle of its large tensors.

        Args:
            count: of the trajectories.
            least: bytes from which on a tensor travels apart; 0: none does, and there are no bundles.
            bundles: of tensors of the trajectories that wait in the object store.
        """
        outgoing = [Outgoing() for _ in range(count)] if least else []

        async def teach() -> list[TeacherOutput]:
            outputs = await self._role.teach_async(unpack(blob, [Rows(parts) for parts in bundles], fetch=True))
            return thinned_outputs(outputs, outgoing, least) if least else list(outputs)

        answer = answered(lambda: self._run(teach()), Bundles(list(outgoing)) if least else None)
        return answer, *(source.parts for source in outgoing)


class RolloutHost(Host):
    """A rollout engine.

    Calls may overtake each other on their way. So every `generate` has a number, and a pause or abort says up to which
    number it revokes: what arrives later than its own abort is not drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self._floor = 0
        self._revoked: set[tuple[int, str]] = set()
        self._staged: tuple[WeightManifest, int, dict[str, torch.Tensor]] | None = None

    def generate(
        self, number: int, blob: bytes, ids: Sequence[str], least: int = 0, groups: Sequence[str] = ()
    ) -> tuple[Any, ...]:
        """Packed requests -> packed [`RolloutResult`, names of media, requests that left media], and a parcel of media
        for every request id (empty where none travel apart); see :mod:`media`.

        Args:
            least: bytes from which on media of a sample travel apart; 0: none do, and there are no parcels.
            groups: of the requests, where large tensors travel apart too: their bundles are added to the answer; see
                :class:`tensors.Outbox`.
        """
        parcels: dict[str, bytes] = {}
        outbox = Outbox(dict(zip(ids, groups, strict=True))) if groups else None
        requests: list[Any] = []

        async def draw() -> RolloutResult:
            requests.extend(unpack(blob))
            late = [i for i in ids if number <= self._floor or (number, i) in self._revoked]
            self._revoked.difference_update((number, i) for i in ids)
            if len(late) == len(ids):
                return RolloutResult([], tuple(late))
            result = await self._role.generate([r for r in requests if r.request_id not in late])
            return RolloutResult(list(result.trajectories), (*result.aborted, *late), result.partials)

        def drawn() -> tuple[RolloutResult, Names, list[str]]:
            result, left = without_prompts(self._run(draw()), requests)
            names: Names = {}
            if least:
                result, names, media = separated(result, least)
                parcels.update(media)
            return thinned(result, outbox, least) if outbox else result, names, left

        sources = outbox.sources if outbox else []
        answer = answered(drawn, Bundles(list(sources)) if outbox else None)
        media = [parcels.get(request, b"") for request in ids] if least else []
        return answer, *media, *(source.parts for source in sources)

    def pause(self, number: int) -> bytes:
        """Revoke all calls up to `number` and pause."""

        def pause() -> Ack:
            self._floor = max(self._floor, number)
            ack: Ack = self._role.pause()
            return ack

        return answered(lambda: self._call(pause))

    def abort(self, number: int, blob: bytes) -> bytes:
        """Packed None: revoke all calls up to `number` and abort everything. Else a packed list of [number, id]."""

        def abort() -> Ack:
            pairs = unpack(blob)
            if pairs is None:
                self._floor = max(self._floor, number)
            else:
                self._revoked.update((call, name) for call, name in pairs)
            ack: Ack = self._role.abort(None if pairs is None else [name for _, name in pairs])
            return ack

        return answered(lambda: self._call(abort))

    def control(self, operation: str, blob: bytes) -> bytes:
        """resume, sleep, wake, weights_checksum or statistics, with packed keyword arguments."""
        arguments: Mapping[str, Any] = unpack(blob)
        return answered(lambda: self._call(lambda: getattr(self._role, operation)(**arguments)))

    def health(self) -> bytes:
        """Answers while the engine works."""
        return answered(self._role.health)

    def stage(self, blob: bytes, version: int) -> bytes:
        """Begin to receive an update: its packed manifest."""

        def begin() -> None:
            self._staged = (unpack(blob), version, {})

        return answered(begin)

    def bucket(self, blob: bytes, *bundles: Parts) -> bytes:
        """Some of its tensors, by name, of which some are in bundles of the object store."""

        def add() -> None:
            _, _, tensors = self._expected()
            tensors.update(unpack(blob, [Rows(parts) for parts in bundles], fetch=True))

        return answered(add)

    def seal(self) -> bytes:
        """All have come: verify them against the manifest; the bytes received."""

        def verify() -> int:
            manifest, version, tensors = self._expected()
            try:
                receive(NamedTensorStream(manifest, tensors))
            except WeightSyncError:
                self._staged = None
                raise
            return manifest.bytes

        return answered(verify)

    def commit(self, version: int) -> bytes:
        """Have the engine take the staged update."""

        def apply() -> Ack:
            manifest, staged, tensors = self._expected()
            if staged != version:
                raise WeightSyncError(f"an update to policy version {staged} is staged, not to {version}")
            self._staged = None
            ack: Ack = self._role.update_weights(NamedTensorStream(manifest, tensors), version)
            return ack

        return answered(lambda: self._call(apply))

    def discard(self) -> bytes:
        """Drop what is staged."""

        def drop() -> int:
            self._staged = None
            return int(self._role.health().policy_version)

        return answered(drop)

    def recall(self, version: int) -> bytes:
        """Have the engine take its last update back, where it can."""

        def recall() -> Ack:
            if not isinstance(self._role, RecallableUpdates):
                raise LifecycleError("this rollout engine cannot take a weight update back")
            return self._role.recall_weights(version)

        return answered(lambda: self._call(recall))

    def _expected(self) -> tuple[WeightManifest, int, dict[str, torch.Tensor]]:
        if self._staged is None:
            raise WeightSyncError("no weight update is staged here", remedy="stage one first")
        return self._staged
