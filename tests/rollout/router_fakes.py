"""Rollout replicas that draw when they are told to, and die when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from omni_portable.contracts.errors import EngineEndedInUpdateError, WeightSyncError, WorkerLostError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.rollout import EngineHealth, RolloutResult
from omni_portable.models.weights import checksums, make_stream, receive
from omni_portable.rollout.inflight import InFlight, Outcome
from omni_portable.rollout.lifecycle import Lifecycle
from tests.support.requests import make_trajectory


def stream(value: float):
    return make_stream("full", [("w", torch.full((3,), value))], None)


class Replica:
    """An engine with a real state machine; `open` lets what is drawn come back."""

    name = "fake"

    def __init__(self, label: str) -> None:
        self.label, self.lifecycle, self.inflight = label, Lifecycle("fake"), InFlight()
        self.tensors = {"w": torch.zeros(3)}
        self.calls: list[Any] = []
        self.open = asyncio.Event()
        self.dead = asyncio.Event()
        self.refuse = ""
        self.keeps = True
        self.former: tuple[int, dict[str, torch.Tensor]] | None = None

    def die(self) -> None:
        self.dead.set()

    def _alive(self) -> None:
        if self.dead.is_set():
            raise WorkerLostError(f"the process of '{self.label}' is gone")

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        self._alive()
        self.lifecycle.require("generate")
        tickets = self.inflight.open([r.request_id for r in requests])
        version = self.lifecycle.policy_version
        self.calls.append([r.request_id for r in requests])
        done = [asyncio.create_task(event.wait()) for event in (self.open, self.dead)]
        while not any(task.done() for task in done) and any(t.outcome is Outcome.PENDING for t in tickets):
            await asyncio.sleep(0)
        for task in done:
            task.cancel()
        self._alive()
        finished = [
            make_trajectory(r, version) for r, t in zip(requests, tickets, strict=True) if t.outcome is Outcome.PENDING
        ]
        self.inflight.close(tickets) if not finished else [self.inflight.finish(t) for t in tickets]
        names = {t.request.request_id for t in finished}
        return RolloutResult(finished, tuple(r.request_id for r in requests if r.request_id not in names))

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        return self._done("abort", aborted=self.inflight.abort(request_ids))

    def pause(self) -> Ack:
        self._require("pause")
        aborted = self.inflight.abort()
        self.lifecycle.paused()
        return self._done("pause", aborted=aborted)

    def resume(self) -> Ack:
        self._require("resume")
        self.lifecycle.resumed()
        self.former = None
        return self._done("resume")

    def sleep(self, level: int = 1) -> Ack:
        self._require("sleep")
        self.lifecycle.slept(level)
        return self._done("sleep")

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack:
        self._require("wake")
        self.lifecycle.woke(tags)
        return self._done("wake")

    def stage_weights(self, given, version: int) -> Ack:
        self._alive()
        self.staged = receive(given)
        self.calls.append("stage")
        if self.refuse == "stage":
            raise WeightSyncError("the tensor 'w' arrived with checksum 1, announced was 2")
        return Ack("stage_weights", version)

    def commit_weights(self, version: int) -> Ack:
        return self._apply(self.staged, version)

    def discard_weights(self) -> Ack:
        self._alive()
        self.calls.append("discard")
        return Ack("discard_weights")

    def update_weights(self, given, version: int) -> Ack:
        self._alive()
        return self._apply(receive(given), version)

    def _apply(self, tensors, version: int) -> Ack:
        self._require("update_weights")
        if self.refuse == "ended":
            raise EngineEndedInUpdateError(f"the engine ended during the weight update to policy version {version}")
        if self.refuse == "apply":
            raise WeightSyncError("applying failed at 'w'")
        self.former = (self.lifecycle.policy_version, self.tensors) if self.keeps else None
        self.tensors = tensors
        self.lifecycle.updated(version - (self.refuse == "version"))
        return self._done("update_weights")

    def recall_weights(self, version: int) -> Ack:
        self._require("recall_weights")
        self.lifecycle.recalled(version)
        if self.refuse == "recall":
            raise WeightSyncError("going back failed")
        if self.former is None or self.former[0] != version:
            return self._done("recall_weights", ok=False, detail="not kept")
        self.tensors, self.former = self.former[1], None
        self.lifecycle.went_back()
        return self._done("recall_weights", detail="put back")

    def weights_checksum(self, names: Iterable[str] | None = None) -> dict[str, str]:
        self._alive()
        return checksums(self.tensors.items())

    def health(self) -> EngineHealth:
        self._alive()
        return EngineHealth(self.lifecycle.state, self.lifecycle.policy_version, len(self.inflight))

    def statistics(self) -> dict[str, float]:
        self._alive()
        return {"perf/rollout/batches": 1.0, "perf/rollout/batch_size/mean": 2.0}

    def _require(self, operation: str) -> None:
        self._alive()
        self.lifecycle.require(operation)
        self.calls.append(operation)

    def _done(self, operation: str, **fields: Any) -> Ack:
        self._alive()
        return Ack(operation, self.lifecycle.policy_version, **fields)
