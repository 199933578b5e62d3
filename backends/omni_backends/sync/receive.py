"""A worker's side of a weight sync: stage, verify, apply completely or not at all, and say so.

Two phases keep several workers at one version: `weights_commit` applies but keeps what is needed to go back, and only
`weights_finish`, which the sender calls when every worker has applied, ends the former version.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_backends.sync.channel import ReceiveChannel, open_receiver
from omni_backends.sync.processes import ProcessMark, mark_of
from omni_backends.sync.segment import Segment
from omni_backends.sync.staging import Staging
from omni_backends.sync.target import FormerWeights, WeightTarget
from omni_backends.sync.wire import Announcement, decode_announcement, decode_bucket
from omni_portable.contracts.errors import OmniPortableError, WeightSyncError
from omni_portable.contracts.weights import WeightManifest

LOG = logging.getLogger(__name__)
Answer = dict[str, Any]
"""{'ok': True, ...} or {'ok': False, 'error': one line}: plain JSON values."""


@dataclass
class _Session:
    """One sync under way. `undo` is what restores the weights from before, once they have been applied."""

    announced: Announcement
    version: int
    sender: ProcessMark
    channel: ReceiveChannel
    staging: Staging
    undo: list[_Undo] = field(default_factory=list)


@dataclass(frozen=True)
class _Undo:
    """How to go back: a target's snapshot, or its outline and the tensors of the former update."""

    snapshot: Any
    former: Mapping[str, torch.Tensor] | None = None


@dataclass(frozen=True)
class _Former:
    """The update that the model holds, where its tensors lie in a channel's memory at `place`."""

    place: tuple[int, ...]
    tensors: Mapping[str, torch.Tensor]


class WeightReceiver:
    """The five calls of a sync, and the read-back, for one worker.

    None of them raises for a failed update: the answer carries the error, the staged tensors are dropped, and the model
    holds its old weights. If those could not be put back, the receiver refuses all further updates.

    Args:
        target: the worker's model.
        rank: of this worker among all workers that are sent the update.
        version: policy version that the model holds now.
    """

    def __init__(self, target: WeightTarget, *, rank: int = 0, version: int = 0) -> None:
        self._target = target
        self._rank = rank
        self._session: _Session | None = None
        self._former: _Former | None = None
        self._mapped: dict[tuple[int, ...], Segment] = {}
        self.version = version
        self.broken = ""
        """Why the model may hold neither the old nor the new weights; empty while it is whole."""

    def weights_begin(self, manifest: dict[str, Any], version: int, repeat: bool = False) -> Answer:
        """Open a sync.

        Args:
            manifest: see `wire.Announcement`.
            version: must be newer than what is held; with `repeat` it may be any (what is held counts for nothing: the
                weights were lost, or recalled).
        """
        return self._answer("weights_begin", lambda: self._begin(manifest, version, repeat))

    def weights_bucket(self, header: dict[str, Any]) -> Answer:
        """Stage and verify one bucket (see `wire.Bucket`)."""
        return self._answer("weights_bucket", lambda: self._bucket(header))

    def weights_commit(self, sync: str) -> Answer:
        """Apply what was staged, if it is complete; answers with 'bound_modules' and 'seconds'."""
        return self._answer("weights_commit", lambda: self._commit(sync))

    def weights_finish(self, sync: str) -> Answer:
        """Every worker has applied: the new version is the worker's; answers with 'version'."""
        return self._answer("weights_finish", lambda: self._finish(sync))

    def weights_discard(self, sync: str, reason: str = "") -> Answer:
        """Drop a sync and put back the weights from before; nothing to do where it is not under way here."""
        if self._session is None or self._session.announced.sync != sync:
            return {"ok": not self.broken, "error": self.broken, "version": self.version}
        LOG.warning("weight update to version %d discarded: %s", self._session.version, reason)
        self._drop()
        return {"ok": not self.broken, "error": self.broken, "version": self.version}

    def weights_checksum(self, names: Iterable[str] | None = None) -> Answer:
        """Read back what the model holds; answers with 'checksums' (canonical name -> hex) and 'version'."""

        def read() -> Answer:
            found = self._target.checksums(None if names is None else list(names))
            return {"checksums": dict(found), "version": self.version}

        return self._answer("weights_checksum", read, drop=False)

    def _begin(self, message: dict[str, Any], version: int, repeat: bool) -> Answer:
        if self.broken:
            raise WeightSyncError(f"a former update left neither old nor new weights ({self.broken})")
        announced = decode_announcement(message)
        self._refuse_second(announced)
        if version <= self.version and not repeat:
            raise WeightSyncError(f"this worker holds version {self.version} and was sent version {version}")
        self._target.check(announced.manifest)
        channel = open_receiver(announced.channel, self._rank, self._mapped)
        # an engine may keep LoRA matrices as they are given: they are copied
        lasting = channel.lasting and announced.manifest.mode == "full"
        staging = Staging(announced.manifest, self._target.slice_of, lasting=lasting)
        if self._former is not None and self._former.place == channel.place:
            self._former = None  # what it was is overwritten
        self._session = _Session(announced, version, mark_of(announced.sender), channel, staging)
        return {"version": self.version}

    def _refuse_second(self, announced: Announcement) -> None:
        session = self._session
        if session is None:
            return
        if session.sender.alive:
            raise UnrelatedSyncError(
                f"the update to version {session.version} by process {session.sender.process} is still under way"
            )
        LOG.warning("process %d died in its weight update; the update is discarded", session.sender.process)
        self._drop()
        if self.broken:
            raise WeightSyncError(f"the update of a dead process could not be undone ({self.broken})")

    def _bucket(self, header: dict[str, Any]) -> Answer:
        bucket = decode_bucket(header)
        session = self._current(bucket.sync)
        session.staging.add(bucket, session.channel.fetch(bucket))
        return {"index": bucket.index}

    def _commit(self, sync: str) -> Answer:
        session = self._current(sync)
        manifest = session.announced.manifest
        tensors = session.staging.complete()
        started = time.perf_counter()
        session.undo.append(self._undo(tuple(tensors), manifest))
        bound = self._target.apply(tensors, manifest.lora)
        expected = 0 if manifest.lora is None else manifest.lora.expected_modules
        if bound != expected:
            raise WeightSyncError(f"the engine applies the LoRA in {bound} modules, expected {expected}")
        return {"bound_modules": bound, "seconds": time.perf_counter() - started}

    def _finish(self, sync: str) -> Answer:
        session = self._current(sync)
        if not session.undo:
            raise WeightSyncError("the update was to end before it was applied")
        self.version = session.version
        self._former = None
        if session.staging.lasting:
            self._former = _Former(session.channel.place, session.staging.complete())
        session.channel.close()
        self._session = None
        return {"version": self.version}

    def _undo(self, names: tuple[str, ...], manifest: WeightManifest) -> _Undo:
        held = {} if self._former is None else self._former.tensors
        if manifest.mode == "full" and held.keys() == set(names) and isinstance(self._target, FormerWeights):
            return _Undo(self._target.outline(names), held)
        return _Undo(self._target.snapshot(names, manifest.lora))

    def _current(self, sync: str) -> _Session:
        if self._session is None or self._session.announced.sync != sync:
            raise UnrelatedSyncError(f"no weight update '{sync}' is under way here")
        return self._session

    def _drop(self) -> None:
        """End the session; where weights were applied, put the old ones back."""
        session, self._session = self._session, None
        if session is None:
            return
        session.channel.close()
        if not session.undo:
            return
        try:
            undo = session.undo[0]
            self._target.restore(undo.snapshot)
            if undo.former is not None:
                self._target.apply(undo.former, None)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises, its weights are not known any more
            LOG.exception("the weights from before a failed update could not be put back")
            self.broken = f"putting back version {self.version} failed: {error!r}"

    def _answer(self, method: str, work: Callable[[], Answer], *, drop: bool = True) -> Answer:
        """Carry out a call; an error becomes the answer, because engines do not raise workers' errors reliably."""
        try:
            return {"ok": True, "error": "", **work()}
        except UnrelatedSyncError as error:
            return {"ok": False, "error": error.problem}
        except OmniPortableError as error:
            return self._failed(error.problem, drop)
        except Exception as error:  # noqa: BLE001 - the boundary of the process: the sender raises it
            LOG.exception("%s failed", method)
            return self._failed(f"{type(error).__name__}: {error}", drop)

    def _failed(self, reason: str, drop: bool) -> Answer:
        if drop:
            self._drop()
        return {"ok": False, "error": f"{reason}; {self.broken}" if self.broken else reason}


class UnrelatedSyncError(WeightSyncError):
    """A call that does not belong to the sync under way, which goes on."""
