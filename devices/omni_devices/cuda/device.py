"""NVIDIA GPUs as a :class:`omni_portable.contracts.device.Device`. Importing this module does not import torch."""

from __future__ import annotations

from omni_devices.common import cumem_pool, torch_cuda_api
from omni_devices.common.gpu_device import GpuDevice
from omni_devices.common.selector import TableAttention
from omni_devices.common.torch_cuda_api import TORCH_DEVICE_TYPE
from omni_devices.cuda import detection, generations, profile
from omni_devices.cuda.determinism import CudaDeterminism
from omni_devices.cuda.environment import environment
from omni_devices.cuda.families import TABLE
from omni_portable.contracts.device import DeviceIdentity, StaticProfile


class CudaDevice(GpuDevice):
    """NVIDIA GPUs of one kind.

    Args:
        generation: 'sm90' and the like; '' asks the driver's management library.

    Raises:
        DeviceError: the generation is unknown or another one than that of the GPUs here, the GPUs differ, or the
            driver does not answer.
    """

    name = generations.NAME

    def __init__(self, generation: str = "") -> None:
        row = generations.generation(detection.resolve(generation))
        attention = TableAttention(TABLE, row.name, TORCH_DEVICE_TYPE)
        super().__init__(row, attention, CudaDeterminism(), cumem_pool.engine_pool)

    def identity(self) -> DeviceIdentity:
        """Model, count and memory of the GPUs, driver and libraries; starts the runtime in this process."""
        return profile.identity(self.generation)

    def environment(self, role: str) -> dict[str, str]:
        """The same for every role, but for an actor in a process of its own."""
        return environment(self.generation, role)

    @staticmethod
    def available() -> tuple[bool, str]:
        """Device files, the build of torch, and how many GPUs torch counts through the driver; no context."""
        return torch_cuda_api.available(detection.VENDOR)

    @staticmethod
    def static_profile(generation: str = "") -> StaticProfile:
        """Planning's answers from tables."""
        return profile.static_profile(generation)
