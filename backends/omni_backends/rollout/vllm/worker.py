"""What our engine adds to vLLM's workers: the calls of a weight sync, and questions about the process."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any

import psutil
import torch

from omni_backends.rollout.vllm.inventory import decode_inventory
from omni_backends.rollout.vllm.sampler import OwnSampler
from omni_backends.rollout.vllm.target import VllmTarget
from omni_backends.sync import ReceiverExtension, WeightReceiver
from omni_backends.sync.processes import ProcessMark, mark_of
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.weights import LoraInfo

WATCH_S = 2.0
"""Seconds between two looks at the owner."""


class WorkerExtension(ReceiverExtension):
    """Mixed into vLLM's worker class (`worker_extension_cls`); every call takes and returns plain JSON values."""

    def omni_configure(
        self, inventory: dict[str, Any], lora: dict[str, Any] | None, moe_update: str, version: int, owner: int
    ) -> dict[str, Any]:
        """Say what updates will bring; called once, before the first.

        Args:
            owner: process that started the engine; where it ends, also by a signal, this one ends.
        """
        info = None
        if lora is not None:
            info = LoraInfo(int(lora["rank"]), float(lora["alpha"]), tuple(lora["targets"]), int(lora["modules"]))
        target = VllmTarget(self, decode_inventory(inventory), info, moe_update)
        self.__dict__["_omni_configured"] = (target, version)
        threading.Thread(target=_end_with, args=(mark_of(owner),), daemon=True).start()
        return {"ok": True, "error": "", "process": os.getpid()}

    def make_weight_receiver(self) -> WeightReceiver:
        """On this worker's model."""
        configured = self.__dict__.get("_omni_configured")
        if configured is None:
            raise LifecycleError("the worker was not told what weight updates bring", remedy="call omni_configure")
        target, version = configured
        return WeightReceiver(target, rank=int(getattr(self, "rank", 0)), version=version)

    def omni_process(self) -> dict[str, Any]:
        """Number of the process, and the bytes that it and the device hold."""
        device: torch.device = self.device  # type: ignore[attr-defined]
        held = psutil.Process().memory_info().rss
        if device.type != "cpu":
            module = torch.get_device_module(device)
            free, total = module.mem_get_info(device)
            held = int(total - free)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"ok": True, "error": "", "process": os.getpid(), "bytes": int(held), "peak": peak}

    def omni_batches(self) -> dict[str, Any]:
        """Rows of every step since the last call."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        found = [p for p in runner.input_batch.logitsprocs.all if isinstance(p, OwnSampler)]
        taken = [rows for sampler in found for rows in sampler.batches]
        for sampler in found:
            sampler.batches = []
        return {"ok": True, "error": "", "batches": taken}


def _end_with(owner: ProcessMark) -> None:
    """Nobody is left to end this process in order: vLLM's front went with its owner."""
    while owner.alive:
        time.sleep(WATCH_S)
    os._exit(1)
