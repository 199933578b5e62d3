"""Variables of processes on NVIDIA GPUs, as data."""

from __future__ import annotations

from omni_devices.common import gpu_generations
from omni_devices.cuda.generations import GENERATIONS

COMMON = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "NCCL_CUMEM_ENABLE": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Of every process. cuBLAS reads its workspace setting when it starts, and repeats its results only with a fixed one.
PCI order makes the driver's numbers of GPUs those of the runtime. NCCL's own virtual-memory buffers are off, as they
are in the engines that sleep, and both ends of a weight broadcast have to agree. The last keeps torch's question for
GPUs from starting the driver, so that a process may still fork."""


def environment(generation: str, role: str) -> dict[str, str]:
    """Variables of a process of `role`; `generation` '' for what holds on all."""
    return gpu_generations.environment(COMMON, GENERATIONS.get(generation), role)
