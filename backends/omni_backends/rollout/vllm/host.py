"""The engine's process and the weights in it: start, end, restart, updates."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_backends.rollout.external.ending import unless_ended, update_errors
from omni_backends.rollout.external.updates import Held, WeightUpdates
from omni_backends.rollout.vllm import VllmOptions
from omni_backends.rollout.vllm.arguments import engine_arguments, process_environment
from omni_backends.rollout.vllm.draw import Job
from omni_backends.rollout.vllm.process import VllmProcess
from omni_backends.rollout.vllm.serving import Policy, ServingFolder, export_folder, read_policy
from omni_backends.rollout.vllm.weights import received_whole
from omni_backends.sync import collect_checksums
from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.weights import WeightManifest, WeightStream
from omni_portable.models.setup import EngineSetup

LOG = logging.getLogger(__name__)
MIB = 1 << 20


@dataclass(frozen=True)
class _Replaced:
    """What an engine served of an earlier version: its folders, and the update that it held besides."""

    version: int
    folder: ServingFolder
    exported: Path | None
    held: Held | None


class VllmHost:
    """Holds the running process; the engine's lock guards it.

    Args:
        setup: of the engine.
        options: of the engine.
    """

    def __init__(self, setup: EngineSetup, options: VllmOptions) -> None:
        self._setup, self._options = setup, options
        self._policy: Policy = read_policy(setup, merge_lora=options.merge_lora)
        self._paused = False
        self._stale = False
        """The process holds weights that were recalled: a new one is started before they are looked at or used."""
        self._exported: Path | None = None
        self._replaced: _Replaced | None = None
        """What an engine that was built anew replaced, until it is resumed."""
        self._folder = ServingFolder(setup.load.path)
        self._version = 0
        self._updates = WeightUpdates(options.bucket_mib * MIB)
        try:
            self._process = self._start(self._folder, self._exported)
        except BaseException:
            self._folder.close()
            raise
        if self._policy.merged is not None:
            begun = self._policy.merged.begin()
            self._updates.held = Held(0, begun.manifest, dict(begun))
        elif self._policy.lora is not None:
            manifest = WeightManifest(mode="adapter", lora=self._policy.lora)
            self._updates.held = Held(0, manifest, self._policy.adapter)
        try:
            self._send_held()
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the engine's processes run."""
        return self._process.alive

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the engine."""
        return self._process.process_ids

    @property
    def adapted(self) -> bool:
        """Whether requests go through a LoRA."""
        return self._policy.lora is not None

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its response together."""
        return int(self._process.front().model_config.max_model_len)

    async def draw(self, respond: Callable[[Any, Job], Coroutine[Any, Any, None]], jobs: Sequence[Job]) -> None:
        """Run the jobs together.

        Raises:
            EngineEndedError: a process ended meanwhile; names it.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        async def all_of(front: Any) -> list[BaseException | None]:
            return list(await asyncio.gather(*(respond(front, job) for job in jobs), return_exceptions=True))

        process = self._process
        failed = [error for error in await process.generate(all_of) if error is not None]
        if any(isinstance(error, EngineDeadError) for error in failed) or (failed and not process.alive):
            raise process.ended("generate") from failed[0]
        if failed:
            raise failed[0]

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests in vLLM."""
        if self._process.alive:
            with unless_ended():
                self._process.call("abort", self._process.front().abort(list(request_ids)))

    def pause(self) -> None:
        """Let vLLM schedule nothing; clears its caches. A process that has ended computes nothing anyway."""
        if self._process.alive:
            with unless_ended():
                self._process.call("pause", self._process.front().pause_generation(mode="abort", clear_cache=True))
        self._paused = True

    def resume(self) -> None:
        """Let vLLM schedule again; where its process has ended, a new one. What was recalled is not served, and the
        weights before the last update are let go of."""
        self._revive()
        self._updates.settle()
        self._drop_replaced()
        self._process.call("resume", self._process.front().resume_generation())
        self._paused = False

    def sleep(self, level: int) -> int:
        """Bytes that were freed on the devices.

        Raises:
            LifecycleError: none were.
        """
        before = self._device_bytes()
        self._process.call("sleep", self._process.front().sleep(level))
        freed = before - self._device_bytes()
        if freed <= 0:
            self._process.call("wake", self._process.front().wake_up())
            raise LifecycleError(f"vLLM acknowledged sleep level {level}, but the devices hold {-freed} bytes more")
        return freed

    def wake(self, tags: Sequence[str]) -> int:
        """Bytes that the devices hold more than before."""
        before = self._device_bytes()
        self._process.call("wake", self._process.front().wake_up(list(tags)))
        return self._device_bytes() - before

    def update(self, stream: WeightStream, version: int, *, repeat: bool) -> str:
        """Bring a stream into the workers; returns a phrase about it.

        Raises:
            EngineEndedInUpdateError: its process ended; the next call that needs one starts it with what it held.
            WeightSyncError: it failed otherwise; the engine holds what it held.
        """
        merged = self._policy.merged
        if merged is None:
            return self._update(stream, version, repeat=repeat)
        detail = self._update(merged.full(stream), version, repeat=repeat)
        merged.accept()
        return f"{detail}, the LoRA merged into {merged.info.expected_modules} modules"

    def _update(self, stream: WeightStream, version: int, *, repeat: bool) -> str:
        if self._options.moe_update == "rebuild" and self._policy.lora is None:
            return self._rebuild(stream, version)
        if not self._process.alive:
            self._revive()
        process = self._process
        with update_errors(process, version):
            self._clear_prefixes()
            report = self._updates.send(
                stream, process.rpc, version, keep=self._options.keep_weights, repeat=repeat or self._stale
            )
            process.call("update_weight_version", process.front().update_weight_version(str(version)))
        self._version, self._stale = version, False
        return report.describe()

    def recall(self, version: int) -> bool:
        """Go back to the weights before the last update; whether they are here. Those of the folder that the engine
        began with are always: it is started anew with them when they are needed.

        Raises:
            EngineEndedError, WeightSyncError: the former update could not be sent again.
        """
        plain = self._policy.lora is None and self._policy.merged is None
        replaced = self._replaced
        if self._updates.step_back(version):
            if self._process.alive:
                self._send_held()
        elif replaced is not None and replaced.version == version:
            _remove(self._folder, self._exported)
            self._folder, self._exported, self._updates.held = replaced.folder, replaced.exported, replaced.held
            self._replaced, self._stale = None, True
        elif plain and version == 0 and self._exported is None:
            self._updates.forget()
            self._stale = True
        else:
            return False
        if self._policy.merged is not None:
            self._policy.merged.go_back()
        self._version = version
        return True

    def checksums(self, names: Iterable[str] | None) -> dict[str, str]:
        """Of what all workers hold; where the process has ended, of a new one."""
        self._revive()
        if self._policy.merged is not None:
            return self._policy.merged.checksums(names, lambda wanted: collect_checksums(self._process.rpc, wanted))
        return collect_checksums(self._process.rpc, names)

    def batches(self) -> list[int]:
        """Rows of every step of vLLM since the last call; none where its process ended, which took them along."""
        if not self._process.alive:
            return []
        with unless_ended():
            return [int(rows) for rows in self._process.rpc("omni_batches", {})[0]["batches"]]
        return []

    def _revive(self) -> None:
        if not self._process.alive:
            LOG.warning("the engine's process %s has ended; it is started again", self._process.process_ids)
            self.restart()
        elif self._stale:
            LOG.warning("the engine is started again, with the weights of policy version %d", self._version)
            self.restart()

    def restart(self) -> None:
        """A new process in place of one that ended, with the last weights and in the same state.

        Raises:
            EngineEndedError: the last weights were not kept.
        """
        if self._version and self._updates.held is None and self._exported is None:
            raise self._process.ended("a restart that needs the last weights (rollout.options.keep_weights is off)")
        self._process.close()
        self._process, self._stale = self._start(self._folder, self._exported), False
        try:
            self._send_held()
        except BaseException:  # it holds other weights than its version says: nobody may use it
            self._process.close()
            raise
        if self._paused:
            self.pause()

    def close(self) -> None:
        """End the processes and remove what was written."""
        self._process.close()
        self._updates.close()
        self._drop_replaced()
        _remove(self._folder, self._exported)

    def _drop_replaced(self) -> None:
        if self._replaced is not None:
            _remove(self._replaced.folder, self._replaced.exported)
            self._replaced = None

    def _start(self, folder: ServingFolder, exported: Path | None) -> VllmProcess:
        process = VllmProcess(
            engine_arguments(self._setup, self._options, folder.path, self._policy),
            process_environment(self._setup, self._options),
            self._options.start_timeout_s,
            self._options.call_timeout_s,
            (*folder.made, *(() if exported is None else (exported,))),
        )
        lora = self._policy.lora
        described = None
        if lora is not None:
            described = {
                "rank": lora.rank,
                "alpha": lora.alpha,
                "targets": list(lora.targets),
                "modules": lora.expected_modules,
            }
        try:
            answers = process.rpc(
                "omni_configure",
                {
                    "inventory": self._policy.inventory.encode(),
                    "lora": described,
                    "moe_update": self._options.moe_update,
                    "version": self._version,
                    "owner": os.getpid(),
                },
            )
            process.know_workers([int(answer["process"]) for answer in answers])
        except BaseException:
            process.close()
            raise
        return process

    def _send_held(self) -> None:
        if self._updates.send_again(self._process.rpc) is not None:
            self._clear_prefixes()

    def _clear_prefixes(self) -> None:
        """Of an engine that computes nothing: what it computes afterwards is kept anew.

        Raises:
            WeightSyncError: vLLM did not.
        """
        if not self._process.call("reset_prefix_cache", self._process.front().reset_prefix_cache()):
            raise WeightSyncError("vLLM did not clear its prefix cache for a weight update")

    def _rebuild(self, stream: WeightStream, version: int) -> str:
        """A new engine around an exported folder; the old one is ended when the new one runs."""
        tensors = received_whole(stream, self._policy.inventory)
        exported = export_folder(self._setup, tensors)
        former = self._version
        self._version = version
        folder = ServingFolder(exported)
        try:
            process = self._start(folder, exported)
        except LifecycleError as error:
            self._version = former
            folder.close()
            shutil.rmtree(exported, ignore_errors=True)
            raise WeightSyncError(f"the engine could not be built anew: {error.problem}") from error
        self._process.close()
        self._drop_replaced()
        self._replaced = _Replaced(former, self._folder, self._exported, self._updates.held)
        self._process, self._stale = process, False
        self._folder, self._exported = folder, exported
        self._updates.forget()  # the folder holds it
        self.pause()
        return f"{len(tensors)} tensors in a new process {self._process.process_ids}"

    def _device_bytes(self) -> int:
        return sum(int(answer["bytes"]) for answer in self._process.rpc("omni_process", {}))


def _remove(folder: ServingFolder, exported: Path | None) -> None:
    folder.close()
    if exported is not None:
        shutil.rmtree(exported, ignore_errors=True)
