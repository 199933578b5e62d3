"""The part of a device that is the same for both vendors of GPUs: everything that goes through `torch.cuda`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omni_devices.common import cumem_pool, gpu_generations
from omni_devices.common.collectives import DistCollectives
from omni_devices.common.gpu_generations import WEIGHT_CHANNELS, Generation
from omni_devices.common.gpu_profile import COLLECTIVE_BACKEND
from omni_devices.common.torch_cuda_api import TORCH_DEVICE_TYPE
from omni_devices.common.torch_memory import AcceleratorMemory
from omni_portable.contracts.device import (
    AttentionSelector,
    Collectives,
    Determinism,
    DeviceCapabilities,
    EnginePool,
    MemoryManager,
)
from omni_portable.contracts.errors import DeviceError

if TYPE_CHECKING:
    import torch


class GpuDevice:
    """GPUs of one kind; a vendor's device adds identity, environment and detection.

    Args:
        row: their generation.
        engine_pool: the rollout engine's allocator.
    """

    name: str
    torch_device_type = TORCH_DEVICE_TYPE

    def __init__(
        self,
        row: Generation,
        attention: AttentionSelector,
        determinism: Determinism,
        engine_pool: Callable[[], EnginePool],
    ) -> None:
        self._row = row
        self.generation = row.name
        self.attention = attention
        self.determinism = determinism
        self.collectives: Collectives = DistCollectives(
            COLLECTIVE_BACKEND, TORCH_DEVICE_TYPE, WEIGHT_CHANNELS, "NCCL_SOCKET_IFNAME"
        )
        self.memory: MemoryManager = AcceleratorMemory(
            cumem_pool.torch_cuda, TORCH_DEVICE_TYPE, engine_pool, cumem_pool.allocator_setting
        )

    def capabilities(self) -> DeviceCapabilities:
        """bfloat16 by default; features from the generation's row."""
        return gpu_generations.capabilities({self.generation: self._row})

    def torch_device(self, index: int = 0) -> torch.device:
        """The GPU of that index, counted as torch counts them.

        Raises:
            DeviceError: there is no such GPU.
        """
        import torch

        count = torch.cuda.device_count()
        if not 0 <= index < count:
            raise DeviceError(
                f"device '{self.name}' has no index {index}: torch sees {count} GPUs", choices=[*map(str, range(count))]
            )
        return torch.device(TORCH_DEVICE_TYPE, index)

    def synchronize(self) -> None:
        """Wait until the current GPU has finished everything that was queued."""
        import torch

        torch.cuda.synchronize()

    def manual_seed(self, seed: int) -> None:
        """Seed torch's generators: the processor's and those of all GPUs."""
        import torch

        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)

    def rng_state(self) -> torch.Tensor:
        """States of all GPUs' generators, uint8 (GPUs, bytes of a state)."""
        import torch

        return torch.stack(torch.cuda.get_rng_state_all())

    def set_rng_state(self, state: Any) -> None:
        """Restore what :meth:`rng_state` returned.

        Raises:
            DeviceError: it comes from another number of GPUs.
        """
        import torch

        count = torch.cuda.device_count()
        if len(state) != count:
            raise DeviceError(
                f"the saved generator state is of {len(state)} GPUs, but torch sees {count}",
                remedy="resume with as many visible GPUs as the run had",
            )
        torch.cuda.set_rng_state_all(list(state.cpu().unbind()))
