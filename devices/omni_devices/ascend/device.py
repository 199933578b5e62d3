"""Ascend NPUs as a :class:`omni_portable.contracts.device.Device`. Importing this module does not import torch."""

from __future__ import annotations

import platform
from functools import cached_property
from typing import TYPE_CHECKING

from omni_devices.ascend import detection, environment, generations, host, npu_smi, profile
from omni_devices.ascend.attention import AscendAttention
from omni_devices.ascend.channels import weight_channels
from omni_devices.ascend.determinism import AscendDeterminism
from omni_devices.ascend.memory import memory
from omni_devices.common.packages import installed_version
from omni_portable.contracts.device import (
    AttentionSelector,
    Collectives,
    Determinism,
    DeviceCapabilities,
    DeviceIdentity,
    MemoryManager,
    StaticProfile,
)
from omni_portable.contracts.errors import DeviceError

if TYPE_CHECKING:
    import torch

_REPORTED = ("torch", "torch-npu", "vllm", "vllm-ascend", "vllm-omni", "triton-ascend", "mindiesd")


class AscendDevice:
    """An Ascend A2, A3 or A5.

    Args:
        generation: 'a2', 'a3', 'a5', or '' for the one that is present. It is held against torch_npu's answer when
            the device is first used.

    Raises:
        DeviceError: no such generation.
    """

    name = profile.NAME
    torch_device_type = profile.TORCH_DEVICE_TYPE

    def __init__(self, generation: str = "") -> None:
        generations.check(generation)
        self._named = generation
        self._confirmed = False
        self.determinism: Determinism = AscendDeterminism(lambda: self.generation)

    @cached_property
    def generation(self) -> str:
        """As named; else by npu-smi, which needs no device context; else, on hosts without npu-smi, by torch_npu.

        Raises:
            DeviceError: the chip is unknown or not supported.
        """
        return self._named or detection.without_context() or detection.from_torch_npu()

    @cached_property
    def attention(self) -> AttentionSelector:
        """Kernels of this generation."""
        return AscendAttention(self.generation)

    @cached_property
    def collectives(self) -> Collectives:
        """HCCL, and the weight channels that the host's driver and CANN serve."""
        from omni_devices.ascend.collectives import HcclCollectives

        return HcclCollectives(weight_channels())

    @cached_property
    def memory(self) -> MemoryManager:
        """The NPU's memory, with vLLM-Ascend's allocator for engines."""
        return memory(lambda: self.generation)

    def torch_device(self, index: int = 0) -> torch.device:
        """Device 'npu:INDEX'; the first use of the device, so the generation is confirmed here.

        Raises:
            DeviceError: no such index, another generation than the named one, or torch_npu does not load.
        """
        import torch

        self._confirm()
        count = self._count()
        if not 0 <= index < count:
            raise DeviceError(f"device 'ascend' has no index {index}", choices=[str(one) for one in range(count)])
        return torch.device(profile.TORCH_DEVICE_TYPE, index)

    def identity(self) -> DeviceIdentity:
        """The chip's name, how many are visible, memory as the driver reports it, driver, CANN and package versions."""
        self._confirm()
        import torch_npu

        home = host.cann_home()
        versions = {name: found for name in _REPORTED if (found := installed_version(name))}
        return DeviceIdentity(
            name=self.name,
            generation=self.generation,
            model=str(torch_npu.npu.get_device_name(0)),
            count=self._count(),
            memory_bytes=int(torch_npu.npu.mem_get_info()[1]),
            driver=self._driver(),
            libraries={**versions, "CANN": host.cann_version(home) or "unknown", "python": platform.python_version()},
        )

    def capabilities(self) -> DeviceCapabilities:
        """From the generation's table; 'ipc' only where driver and CANN are new enough."""
        return profile.capabilities(self.generation, weight_channels())

    def environment(self, role: str) -> dict[str, str]:
        """Variables of a role, to be set before torch loads: no device context is made to answer."""
        return environment.variables(self.generation, role)

    def synchronize(self) -> None:
        """Wait for everything queued on the current device."""
        detection.load_torch_npu()
        import torch_npu

        torch_npu.npu.synchronize()

    def manual_seed(self, seed: int) -> None:
        """Seed torch's host generator and those of all devices."""
        import torch

        detection.load_torch_npu()
        import torch_npu

        torch.manual_seed(seed)
        torch_npu.npu.manual_seed_all(seed)

    def rng_state(self) -> torch.Tensor:
        """State of the current device's generator, uint8 on the host."""
        detection.load_torch_npu()
        import torch_npu

        state: torch.Tensor = torch_npu.npu.get_rng_state()
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Restore what :meth:`rng_state` returned."""
        detection.load_torch_npu()
        import torch_npu

        torch_npu.npu.set_rng_state(state)

    @staticmethod
    def available() -> tuple[bool, str]:
        """Whether the driver's device nodes are here, and what a run would still lack; nothing is loaded."""
        return detection.present()

    @staticmethod
    def static_profile(generation: str = "") -> StaticProfile:
        """Planning's answers from tables."""
        return profile.static_profile(generation)

    def _confirm(self) -> None:
        if not self._confirmed:
            detection.confirm(self.generation)
            self._confirmed = True

    @staticmethod
    def _count() -> int:
        import torch_npu

        return int(torch_npu.npu.device_count())

    @staticmethod
    def _driver() -> str:
        """From the driver's file; a container without it may still have npu-smi."""
        if found := host.driver_version():
            return found
        return (npu_smi.board().driver if npu_smi.installed() else "") or "unknown"
