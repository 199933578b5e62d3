"""AMD GPUs as a :class:`omni_portable.contracts.device.Device`. Importing this module does not import torch."""

from __future__ import annotations

from omni_devices.common import cumem_pool, torch_cuda_api
from omni_devices.common.gpu_device import GpuDevice
from omni_devices.rocm import detection, generations, profile
from omni_devices.rocm.attention import RocmAttention
from omni_devices.rocm.determinism import RocmDeterminism
from omni_devices.rocm.environment import environment
from omni_portable.contracts.device import DeviceIdentity, EnginePool, StaticProfile
from omni_portable.contracts.errors import DeviceError


class RocmDevice(GpuDevice):
    """AMD GPUs of one kind.

    Args:
        generation: 'gfx942' and the like; '' reads the driver's files.

    Raises:
        DeviceError: the generation is unknown or another one than that of the GPUs here, the GPUs differ, or with ''
            the driver shows none.
    """

    name = generations.NAME

    def __init__(self, generation: str = "") -> None:
        row = generations.generation(detection.resolve(generation))
        super().__init__(row, RocmAttention(row.name), RocmDeterminism(), self._engine_pool)

    def identity(self) -> DeviceIdentity:
        """Model, count and memory of the GPUs, driver and libraries; starts the runtime in this process."""
        return profile.identity(self.generation)

    def environment(self, role: str) -> dict[str, str]:
        """The same for every role, but for an actor in a process of its own; a visibility variable that is set here
        comes back under both names.

        Raises:
            DeviceError: the visibility variables of this process differ.
        """
        return {**environment(self.generation, role), **detection.mirrored_visibility()}

    @staticmethod
    def available() -> tuple[bool, str]:
        """Device files, the build of torch, and how many GPUs torch counts through the driver; no context."""
        return torch_cuda_api.available(detection.VENDOR)

    @staticmethod
    def static_profile(generation: str = "") -> StaticProfile:
        """Planning's answers from tables."""
        return profile.static_profile(generation)

    def _engine_pool(self) -> EnginePool:
        if not self._row.sleep_allocator:
            raise DeviceError(
                f"vLLM's sleeping allocator does not work on '{self.name}:{self.generation}', only on MI300 and later",
                remedy="set rollout.sleep_level=0, or give rollout and actor GPUs of their own",
            )
        return cumem_pool.engine_pool()
