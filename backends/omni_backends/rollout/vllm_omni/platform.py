"""vLLM-Omni on the CPU: the answers that its diffusion workers ask of a platform."""

from __future__ import annotations

import os

import torch
from vllm.platforms.cpu import CpuPlatform
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum

from omni_portable.contracts.errors import CapabilityError

_ATTENTION = "omni_backends.rollout.vllm_omni.attention.CpuSDPABackend"
_WORKER = "omni_backends.rollout.vllm_omni.worker.CpuDiffusionWorker"
_KERNELS = (None, "TORCH_SDPA")


class CpuOmniPlatform(OmniPlatform, CpuPlatform):
    """Diffusion on the CPU of one machine, one worker; vLLM's own CPU platform answers everything else."""

    _omni_enum = OmniPlatformEnum.OOT

    @classmethod
    def get_diffusion_worker_cls(cls) -> str:
        return _WORKER

    @classmethod
    def get_diffusion_attn_backend_cls(
        cls, selected_backend: str | None, head_size: int, allow_trtllm_default: bool = False
    ) -> str:
        """The one kernel there is.

        Raises:
            CapabilityError: another was asked for.
        """
        if selected_backend not in _KERNELS:
            raise CapabilityError(
                f"vLLM-Omni on the CPU has no attention kernel '{selected_backend}'",
                remedy="set device.attention.transformer=sdpa",
                choices=("TORCH_SDPA",),
            )
        return _ATTENTION

    @classmethod
    def get_default_stage_config_path(cls) -> str:
        return "vllm_omni/deploy"

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        """No: compiled graphs would compute other bits than the actor's eager ones."""
        return False

    @classmethod
    def supports_cpu_offload(cls) -> bool:
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        return 1

    @classmethod
    def device_count(cls) -> int:
        return 1

    @classmethod
    def get_device_version(cls) -> str | None:
        return None

    @classmethod
    def synchronize(cls) -> None:
        """Nothing runs behind the caller's back."""

    @classmethod
    def empty_cache(cls) -> None:
        """The allocator caches nothing that could be given back."""

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        return cls.get_device_memory(device)[0]

    @classmethod
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:
        """Free and total bytes of the host."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    @classmethod
    def mem_get_info(cls, device: torch.device | None = None) -> tuple[int, int]:
        return cls.get_device_memory(device)

    @classmethod
    def reset_peak_memory_stats(cls, device: torch.device | None = None) -> None:
        """torch keeps no statistics of host memory."""

    @classmethod
    def max_memory_allocated(cls, device: torch.device | None = None) -> int:
        return 0

    @classmethod
    def max_memory_reserved(cls, device: torch.device | None = None) -> int:
        return 0

    @classmethod
    def memory_allocated(cls, device: torch.device | None = None) -> int:
        return 0

    @classmethod
    def memory_reserved(cls, device: torch.device | int | None = None) -> int:
        return 0
