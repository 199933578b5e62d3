"""vLLM-Omni's diffusion worker on the CPU: sleep and wake without an accelerator's allocator."""

from __future__ import annotations

from typing import Any

from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker

from omni_portable.contracts import registry
from omni_portable.contracts.device import SleepPool
from omni_portable.contracts.errors import LifecycleError


class CpuDiffusionWorker(DiffusionWorker):
    """Puts the policy's weights to sleep through the pool of our own device 'cpu'."""

    _pool: SleepPool | None = None

    def sleep(self, level: int = 1) -> int:
        """Bytes released, as measured.

        Raises:
            LifecycleError: another level than 1: the engine cannot wake its weights after it.
        """
        if level != 1:
            raise LifecycleError(f"vLLM-Omni cannot wake after sleep level {level}", choices=("1",))
        if self._pool is None:
            device: Any = registry.load("device", "cpu")()
            self._pool = device.memory.pool("vllm_omni")
            for transformer in self.model_runner.pipeline.transformers.values():
                self._pool.register("weights", transformer)
        return self._pool.sleep(level, ("weights",)).bytes

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Bring the weights back, bit for bit."""
        if self._pool is None:
            raise LifecycleError("the worker was asked to wake, but does not sleep")
        self._pool.wake(("weights",))
        return True
