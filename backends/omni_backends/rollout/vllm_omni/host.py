"""The engine's processes and the weights in them: start, end, restart, updates."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_backends.rollout.vllm_omni import VllmOmniOptions
from omni_backends.rollout.vllm_omni.arguments import engine_arguments, process_environment
from omni_backends.rollout.vllm_omni.messages import decode_error, encode_request
from omni_backends.rollout.vllm_omni.process import OmniProcess
from omni_backends.sync import collect_checksums, send_weights
from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.rollout import RolloutRequest
from omni_portable.contracts.weights import WeightManifest, WeightStream
from omni_portable.models.setup import EngineSetup
from omni_portable.models.weights import make_stream

MIB = 1 << 20
CALLS = "policy_call"


@dataclass(frozen=True)
class Held:
    """The last weights, on the host: what new processes are brought to."""

    version: int
    manifest: WeightManifest
    tensors: Mapping[str, torch.Tensor]


class OmniHost:
    """Holds the running engine; the rollout engine's lock guards it.

    Args:
        setup / options: of the engine.
    """

    def __init__(self, setup: EngineSetup, options: VllmOmniOptions) -> None:
        self._setup, self._options = setup, options
        self._held: Held | None = None
        self._version = 0
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
        self._process.abort(engine_ids)

    def settle(self) -> None:
        """Return when nothing computes any more (all requests were aborted)."""
        self._process.rpc("policy_idle", {})

    def sleep(self, level: int) -> int:
        """Bytes released, as the stages acknowledge."""
        return self._process.sleep(level)

    def wake(self) -> None:
        """Bring the weights back."""
        self._process.wake()

    def update(self, stream: WeightStream, version: int) -> str:
        """Bring a stream into the workers; returns a phrase about it.

        Raises:
            WeightSyncError: it failed; the engine holds what it held.
        """
        keep = self._options.keep_weights or stream.manifest.mode == "adapter"
        kept = _Kept(stream, keep=keep)
        detail = self._send(kept, version, repeat=False)
        if keep:
            self._held = Held(version, stream.manifest, kept.tensors)
        self._version = version
        return detail

    def checksums(self, names: Iterable[str] | None) -> dict[str, str]:
        """Of what all workers hold."""
        return collect_checksums(self._call, names)

    def figures(self) -> dict[str, float]:
        """The workers' statistics since the last call; none where a process ended."""
        if not self._process.alive:
            return {}
        found: dict[str, float] = self._process.rpc("policy_statistics", {})[0]["figures"]
        return found

    def restart(self) -> None:
        """New processes in place of ended ones, with the last weights.

        Raises:
            EngineEndedError: the weights that the engine held are not here to be sent again.
        """
        if self._version and self._held is None:
            raise self._process.ended("its work; its weights were not kept (rollout.options.keep_weights is off)")
        self._process.close()
        self._process = self._start()
        if self._held is not None:
            held = self._held
            stream = make_stream(held.manifest.mode, held.tensors.items(), held.manifest.lora)
            self._send(stream, held.version, repeat=False)

    def close(self) -> None:
        """End the processes."""
        self._process.close()

    def _start(self) -> OmniProcess:
        return OmniProcess(
            engine_arguments(self._setup, self._options),
            process_environment(os.environ),
            self._options.start_timeout_s,
            self._options.call_timeout_s,
        )

    def _call(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        return self._process.rpc(CALLS, {"call": method, "arguments": arguments})

    def _send(self, stream: WeightStream, version: int, *, repeat: bool) -> str:
        try:
            report = send_weights(
                stream, self._call, version=version, bucket_bytes=self._options.sync_bucket_mb * MIB, repeat=repeat
            )
        except LifecycleError as error:
            raise WeightSyncError(f"the weight update failed: {error.problem}", remedy=error.remedy) from error
        self._way = str(self._process.rpc("policy_lora", {})[0]["way"])
        return report.describe() + (f" ({self._way})" if self._way else "")

    def _lora(self) -> dict[str, Any] | None:
        """How a request names the adapter that it runs with."""
        if self._way != "adapter" or self._held is None or self._held.manifest.lora is None:
            return None
        lora = self._held.manifest.lora
        return {"folder": str(self._setup.load.path), "scale": lora.alpha / lora.rank}


class _Kept:
    """A stream that leaves a copy of what it delivers on the host."""

    def __init__(self, stream: WeightStream, *, keep: bool) -> None:
        self.manifest = stream.manifest
        self._stream, self._keep = stream, keep
        self.tensors: dict[str, torch.Tensor] = {}

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._stream:
            if self._keep:
                self.tensors[name] = tensor.detach().to("cpu", copy=True)
            yield name, tensor
