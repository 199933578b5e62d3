"""The engine's processes and the weights in them: start, end, restart, updates."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omni_backends.rollout.external.ending import unless_ended, update_errors
from omni_backends.rollout.external.ports import reserved_port
from omni_backends.rollout.external.updates import WeightUpdates
from omni_backends.rollout.vllm_omni import VllmOmniOptions
from omni_backends.rollout.vllm_omni.arguments import engine_arguments, process_environment
from omni_backends.rollout.vllm_omni.messages import decode_error, encode_request
from omni_backends.rollout.vllm_omni.process import OmniProcess
from omni_backends.sync import SyncReport, collect_checksums
from omni_portable.contracts.rollout import RolloutRequest
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.setup import EngineSetup

LOG = logging.getLogger(__name__)
MIB = 1 << 20
CALLS = "policy_call"


class OmniHost:
    """Holds the running engine; the rollout engine's lock guards it.

    Args:
        setup / options: of the engine.
    """

    def __init__(self, setup: EngineSetup, options: VllmOmniOptions) -> None:
        self._setup, self._options = setup, options
        self._updates = WeightUpdates(options.bucket_mib * MIB)
        self._version = 0
        self._stale = False
        """The processes hold weights that were recalled: new ones are started before they are looked at or used."""
        self._way = ""
        self._process = self._start()

    @property
    def alive(self) -> bool:
        """Whether the engine's process runs."""
        return self._process.alive

    @property
    def process_id(self) -> int:
        """Of the engine."""
        return self._process.process_id

    @property
    def start_seconds(self) -> float:
        """How long the last start took."""
        return self._process.start_seconds

    async def draw(
        self, request: RolloutRequest, engine_id: str, pack: str, row: int, rows: int
    ) -> Mapping[str, Any] | None:
        """A worker's answer to one request, `row` of `rows` that should share a forward; None where it was aborted.

        Raises:
            EngineEndedError: a worker's process ended meanwhile.
            LifecycleError: the engine failed; errors of ours that a worker met come as themselves.
        """
        answer = await self._process.draw(encode_request(request, pack, row, rows), engine_id, self._lora())
        if answer is not None and "error" in answer:
            raise decode_error(answer)
        found: Mapping[str, Any] | None = answer
        return found

    def abort(self, engine_ids: Sequence[str]) -> None:
        """End requests in the engine."""
        with unless_ended():
            self._process.abort(engine_ids)

    def settle(self) -> None:
        """Return when nothing computes any more (all requests were aborted, or the process has ended)."""
        with unless_ended():
            self._process.rpc("policy_idle", {})

    def sleep(self, level: int) -> int:
        """Bytes released, as the stages acknowledge."""
        return self._process.sleep(level)

    def wake(self) -> None:
        """Bring the weights back."""
        self._process.wake()

    def update(self, stream: WeightStream, version: int, *, repeat: bool = False) -> str:
        """Bring a stream into the workers; returns a phrase about it.

        Raises:
            EngineEndedInUpdateError: its process ended; the next call that needs one starts it with what it held.
            WeightSyncError: it failed otherwise; the engine holds what it held.
        """
        if not self._process.alive:
            self._revive()
        process = self._process
        keep = self._options.keep_weights or stream.manifest.mode == "adapter"
        with update_errors(process, version):
            report = self._updates.send(stream, self._call, version, keep=keep, repeat=repeat or self._stale)
            described = self._described(report)
        self._version, self._stale = version, False
        return described

    def recall(self, version: int) -> bool:
        """Go back to the weights before the last update; whether they are here. Those that the engine began with are
        always: it is started anew with them when they are needed.

        Raises:
            EngineEndedError, WeightSyncError: the former update could not be sent again.
        """
        if self._updates.step_back(version):
            if self._process.alive:
                self._send_held()
        elif version == 0:
            self._updates.forget()
            self._stale = True
        else:
            return False
        self._version = version
        return True

    def ready(self) -> None:
        """Everybody has the last update: let go of the one before; what was recalled is not served."""
        if self._stale:
            self._revive()
        self._updates.settle()

    def checksums(self, names: Iterable[str] | None) -> dict[str, str]:
        """Of what all workers hold; where the process has ended, of a new one."""
        self._revive()
        return collect_checksums(self._call, names)

    def figures(self) -> dict[str, float]:
        """The workers' statistics since the last call; none where a process ended."""
        if not self._process.alive:
            return {}
        with unless_ended():
            found: dict[str, float] = self._process.rpc("policy_statistics", {})[0]["figures"]
            return found
        return {}

    def _revive(self) -> None:
        if not self._process.alive:
            LOG.warning("a process of the engine has ended; the engine is started again")
            self.restart()
        elif self._stale:
            LOG.warning("the engine is started again, with the weights that it began with")
            self.restart()

    def restart(self) -> None:
        """New processes in place of ended ones, with the last weights.

        Raises:
            EngineEndedError: the weights that the engine held are not here to be sent again.
        """
        if self._version and self._updates.held is None:
            raise self._process.ended("its work; its weights were not kept (rollout.options.keep_weights is off)")
        self._process.close()
        self._process, self._stale, self._way = self._start(), False, ""
        try:
            self._send_held()
        except BaseException:  # it holds other weights than its version says: nobody may use it
            self._process.close()
            raise

    def close(self) -> None:
        """End the processes and give the memory back that updates went through."""
        self._process.close()
        self._updates.close()

    def _start(self) -> OmniProcess:
        with reserved_port() as port:
            return OmniProcess(
                engine_arguments(self._setup, self._options),
                process_environment(os.environ, port),
                self._options.start_timeout_s,
                self._options.call_timeout_s,
            )

    def _send_held(self) -> None:
        if (report := self._updates.send_again(self._call)) is not None:
            self._described(report)

    def _call(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        return self._process.rpc(CALLS, {"call": method, "arguments": arguments})

    def _described(self, report: SyncReport) -> str:
        """What to say of an update; asks how the engine applies a LoRA."""
        self._way = str(self._process.rpc("policy_lora", {})[0]["way"])
        return report.describe() + (f" ({self._way})" if self._way else "")

    def _lora(self) -> dict[str, Any] | None:
        """How a request names the adapter that it runs with."""
        held = self._updates.held
        if self._way != "adapter" or held is None or held.manifest.lora is None:
            return None
        lora = held.manifest.lora
        return {"folder": str(self._setup.load.path), "scale": lora.alpha / lora.rank}
