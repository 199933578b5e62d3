"""Memory of an accelerator that torch drives: figures from the driver, trimming, and pools that sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from omni_portable.contracts.device import EnginePool, MemoryStats, SleepPool

if TYPE_CHECKING:
    from torch import Tensor


class DeviceModule(Protocol):
    """The part of torch's module of an accelerator that devices use; bytes, for the current device."""

    def current_device(self) -> int: ...

    def device_count(self) -> int: ...

    def set_device(self, device: Any) -> None: ...

    def synchronize(self) -> None: ...

    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) of the whole device, as the driver counts them."""
        ...

    def memory_allocated(self) -> int:
        """Held by tensors of this process."""
        ...

    def memory_reserved(self) -> int:
        """Held by torch's allocator in this process, cached blocks included."""
        ...

    def max_memory_allocated(self) -> int: ...

    def max_memory_reserved(self) -> int: ...

    def reset_peak_memory_stats(self) -> None: ...

    def empty_cache(self) -> None: ...

    def ipc_collect(self) -> None:
        """Release memory whose handles other processes have closed."""
        ...

    def manual_seed_all(self, seed: int) -> None: ...

    def get_rng_state(self) -> Tensor: ...

    def set_rng_state(self, new_state: Tensor) -> None: ...


def used_bytes(module: DeviceModule) -> int:
    """Bytes of the device in use by every process, as the driver counts them."""
    free, total = module.mem_get_info()
    return total - free


def release_cached(module: DeviceModule) -> None:
    """Wait for what is queued, then give blocks that nobody uses back to the driver."""
    module.synchronize()
    module.ipc_collect()
    module.empty_cache()


class AcceleratorMemory:
    """Implements :class:`omni_portable.contracts.device.MemoryManager` over a module of torch.

    Args:
        module: the module ('torch.X'), imported when it is asked for.
        torch_device_type: of the tensors in pools.
        engine_pool: the allocator of the engine in this process.
        allocator_setting: what the variable that configures torch's allocator holds, '' where it is not set.
        refuse: raises `LifecycleError` for a setting under which an actor's memory cannot be released.
    """

    def __init__(
        self,
        module: Callable[[], DeviceModule],
        torch_device_type: str,
        engine_pool: Callable[[], EnginePool],
        allocator_setting: Callable[[], str],
        refuse: Callable[[], None] | None = None,
    ) -> None:
        self._module = module
        self._torch_device_type = torch_device_type
        self._engine_pool = engine_pool
        self._allocator_setting = allocator_setting
        self._refuse = refuse
        self._engine: EnginePool | None = None

    def stats(self) -> MemoryStats:
        """Total and free of the current device as the driver reports them, for every process on it.

        `used` and `peak` are this process's: what torch's allocator has reserved. The driver's context, libraries and
        communicators take more, and an engine's own allocator is not in it; both are missing from `free`.
        """
        module = self._module()
        free, total = module.mem_get_info()
        return MemoryStats(total=total, free=free, used=module.memory_reserved(), peak=module.max_memory_reserved())

    def trim(self) -> int:
        """Give cached blocks back to the driver; bytes that it reports to be free in addition."""
        module = self._module()
        before = used_bytes(module)
        release_cached(module)
        return max(0, before - used_bytes(module))

    def pool(self, name: str) -> SleepPool:
        """A new, empty pool; `name` is for messages. Its copies go to pinned host memory."""
        from omni_devices.common import sleep
        from omni_devices.common.pinned import PinnedBacking

        backing = PinnedBacking(self._module, self._torch_device_type, self._allocator_setting, self._refuse)
        return sleep.SleepPool(name, backing)

    def engine_pool(self) -> EnginePool:
        """The allocator of the rollout engine in this process; one pool, as it knows what sleeps."""
        if self._engine is None:
            self._engine = self._engine_pool()
        return self._engine
