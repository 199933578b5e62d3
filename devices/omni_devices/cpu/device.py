"""The CPU as a :class:`omni_portable.contracts.device.Device`. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_devices.common.collectives import DistCollectives
from omni_devices.cpu import families, host, profile
from omni_devices.cpu.determinism import CpuDeterminism
from omni_devices.cpu.memory import HostMemory
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


class CpuDevice:
    """The host's processor.

    Args:
        generation: must be empty; the CPU has no generations.
    """

    name = profile.NAME
    generation = ""
    torch_device_type = "cpu"

    def __init__(self, generation: str = "") -> None:
        profile.check_generation(generation)
        self.attention: AttentionSelector = families.selector()
        self.collectives: Collectives = DistCollectives(
            profile.COLLECTIVE_BACKEND, self.torch_device_type, profile.WEIGHT_CHANNELS, "GLOO_SOCKET_IFNAME"
        )
        self.memory: MemoryManager = HostMemory()
        self.determinism: Determinism = CpuDeterminism()

    def torch_device(self, index: int = 0) -> torch.device:
        """There is one CPU device, at index 0."""
        import torch

        if index != 0:
            raise DeviceError(f"device 'cpu' has no index {index}", choices=["0"])
        return torch.device("cpu")

    def identity(self) -> DeviceIdentity:
        """Model name, usable cores and memory, kernel, versions and instruction set."""
        return profile.identity()

    def capabilities(self) -> DeviceCapabilities:
        """fp32 by default; whether bf16 is native is read from the processor's flags."""
        return profile.capabilities(host.processor().bf16_flags)

    def environment(self, role: str) -> dict[str, str]:
        """The same for every role: threads for the cores of this process, gloo on the loopback interface."""
        return profile.environment()

    def synchronize(self) -> None:
        """Nothing to wait for: a CPU operation is finished when it returns."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch's default generator."""
        import torch

        torch.manual_seed(seed)

    def rng_state(self) -> torch.Tensor:
        """State of torch's default generator, uint8."""
        import torch

        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Restore what :meth:`rng_state` returned."""
        import torch

        torch.set_rng_state(state)

    @staticmethod
    def available() -> tuple[bool, str]:
        """Always present; says which processor was found."""
        return True, f"{host.processor().model}, {host.usable_cores()} usable cores"

    @staticmethod
    def static_profile(generation: str = "") -> StaticProfile:
        """Planning's answers from tables."""
        return profile.static_profile(generation)
