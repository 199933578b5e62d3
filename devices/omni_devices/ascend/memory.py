"""Memory of an NPU: torch_npu's statistics, pools that sleep, and vLLM-Ascend's sleeping allocator."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from omni_devices.ascend import detection, vllm_build
from omni_devices.ascend.environment import ALLOCATOR, ANY_ALLOCATOR, NZ
from omni_devices.common.engine_pool import TaggedAllocatorPool
from omni_devices.common.torch_memory import AcceleratorMemory
from omni_portable.contracts.errors import DeviceError, LifecycleError

if TYPE_CHECKING:
    from omni_devices.common.engine_pool import TaggedAllocator
    from omni_devices.common.torch_memory import DeviceModule
    from omni_portable.contracts.device import EnginePool

_NO_CACHING = "PYTORCH_NO_NPU_MEMORY_CACHING"


def memory(generation: Callable[[], str]) -> AcceleratorMemory:
    """The memory manager; `generation` is asked when an engine's allocator is."""
    return AcceleratorMemory(module, "npu", lambda: engine_pool(generation()), allocator_setting)


def module() -> DeviceModule:
    """`torch_npu.npu`, which has the functions of `torch.cuda`.

    Raises:
        DeviceError: torch_npu does not load.
    """
    detection.load_torch_npu()
    import torch_npu

    npu: DeviceModule = torch_npu.npu
    return npu


def allocator_setting(environ: Mapping[str, str] = os.environ) -> str:
    """The settings of torch_npu's allocator in this process' environment, 'NAME=VALUE ...'; '' where there are none."""
    return " ".join(f"{name}={environ[name]}" for name in (ALLOCATOR, ANY_ALLOCATOR) if environ.get(name))


def engine_pool(generation: str) -> EnginePool:
    """The pool of the rollout engine in this process: always the same one, as there is one allocator.

    Raises:
        DeviceError: vLLM-Ascend is missing, was built for another generation, or without its compiled part.
    """
    build = vllm_build.installed()
    if build is None:
        raise DeviceError(
            f"the rollout engine's allocator comes with {vllm_build.DISTRIBUTION}, which is not installed",
            remedy=f"take the image of dockerfiles/Dockerfile.ascend (SOC={generation}), or "
            f"{vllm_build.reinstall(generation)}",
        )
    vllm_build.check(build, generation)
    if not build.has_extension:
        raise DeviceError(
            f"{vllm_build.DISTRIBUTION} is installed without its compiled part (vllm_ascend_C), which unmaps memory: "
            "it was built with COMPILE_CUSTOM_KERNELS=0",
            remedy=vllm_build.reinstall(generation),
        )
    return _pool()


def refuse_settings(environ: Mapping[str, str] = os.environ) -> None:
    """Settings under which vLLM-Ascend's allocator cannot unmap its memory, or could not be woken up.

    Raises:
        LifecycleError: names the variable and what to change it to.
    """
    for name in (ALLOCATOR, ANY_ALLOCATOR):
        if ("expandable_segments", "true") in _settings(environ.get(name, "")):
            raise LifecycleError(
                f"{name}={environ[name]}: vLLM-Ascend's allocator and expandable segments exclude each other",
                remedy=f"set {ALLOCATOR}=expandable_segments:False in the rollout's process, before it starts (the "
                "actor, in a process of its own, may keep them)",
            )
    if environ.get(NZ, "1") != "0":
        raise LifecycleError(
            f"{NZ}={environ.get(NZ, '1 (its default)')}: vLLM-Ascend would hold weights in NZ layout, and then refuses "
            "to wake up",
            remedy=f"set {NZ}=0 in the rollout's process, before it starts, and no weight_nz_mode in additional_config",
        )
    if environ.get(_NO_CACHING):
        raise LifecycleError(
            f"{_NO_CACHING} is set, with which torch_npu allocates past the rollout engine's pool",
            remedy=f"unset {_NO_CACHING} in the rollout's process",
        )


def _settings(text: str) -> list[tuple[str, str]]:
    pairs = (part.partition(":") for part in text.split(","))
    return [(key.strip().lower(), value.strip().lower()) for key, _, value in pairs]


@functools.cache
def _pool() -> EnginePool:
    return TaggedAllocatorPool(_allocator, module, refuse_settings, kept=_kept)


def _allocator() -> TaggedAllocator:
    """The process's one allocator.

    Raises:
        DeviceError: its module does not load.
    """
    detection.load_torch_npu()
    try:
        from vllm_ascend.device_allocator.camem import CaMemAllocator
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"vLLM-Ascend's allocator does not load: {error}",
            remedy="source CANN's set_env.sh and nnal's before the process starts, and install the vllm it belongs to",
        ) from error
    allocator: TaggedAllocator = CaMemAllocator.get_instance()
    return allocator


def _kept() -> int:
    """Bytes that vLLM-Ascend tags to stay mapped while it sleeps (versions before 0.23 know no such tag)."""
    from vllm_ascend.device_allocator.camem import CaMemAllocator

    if not hasattr(CaMemAllocator, "sleep_persistent_tag"):
        return 0
    tag = CaMemAllocator.sleep_persistent_tag
    allocations = CaMemAllocator.get_instance().pointer_to_data.values()
    return sum(allocation.handle[1] for allocation in allocations if allocation.tag == tag)
