"""Variables of processes on AMD GPUs, as data."""

from __future__ import annotations

from collections.abc import Mapping

from omni_devices.common import gpu_generations
from omni_devices.rocm.generations import GENERATIONS

COMMON: Mapping[str, str] = {"HSA_ENABLE_IPC_MODE_LEGACY": "1", "NCCL_CUMEM_ENABLE": "0"}
"""Of every process. The first lets processes of different containers open each other's IPC handles, by which weights
travel. RCCL's own virtual-memory buffers are off, as both ends of a weight broadcast have to agree and an engine that
sleeps cannot have them."""


def environment(generation: str, role: str) -> dict[str, str]:
    """Variables of a process of `role`, without those that the host decides; `generation` '' for what holds on all."""
    return gpu_generations.environment(COMMON, GENERATIONS.get(generation), role)
