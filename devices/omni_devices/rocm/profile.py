"""What is known of AMD GPUs: from tables without hardware, from torch and the driver with it."""

from __future__ import annotations

from typing import Any

from omni_devices.common import gpu_profile
from omni_devices.common.gpu_profile import Tables
from omni_devices.rocm import generations, kfd, packages
from omni_devices.rocm.detection import VENDOR
from omni_devices.rocm.environment import environment
from omni_devices.rocm.families import TABLE
from omni_devices.rocm.generations import GENERATIONS, NAME
from omni_portable.contracts.device import DeviceIdentity, StaticProfile

TABLES = Tables(
    table=TABLE,
    generations=GENERATIONS,
    row=generations.generation,
    environment=environment,
    vendor=VENDOR,
    packages=packages.PACKAGES,
    constraints=packages.CONSTRAINTS,
    image=packages.IMAGE,
    notes=(
        "torch calls these devices 'cuda' and their collectives 'nccl'; its compute capabilities of them collide with "
        "NVIDIA's (gfx90a says 9.0, as Hopper does) and are not read",
        "vLLM-Omni falls from FLASH_ATTN to sdpa where AITER is missing, and replaces hub kernels, with a warning only",
        "variables that the host decides are added there: both visibility variables, once one of them is set",
    ),
)


def static_profile(generation: str = "") -> StaticProfile:
    """Planning's answers; '' for what holds on every generation.

    Raises:
        DeviceError: an unknown generation.
    """
    return gpu_profile.static_profile(TABLES, generation)


def identity(generation: str) -> DeviceIdentity:
    """Model, count and memory as torch reports them, driver and libraries; starts the runtime in the process.

    Raises:
        DeviceError: the GPUs differ or are of another generation.
    """
    import torch

    libraries = {"hip": str(torch.version.hip), "miopen": str(torch.backends.cudnn.version())}
    return gpu_profile.identity(NAME, generation, _generation_of, kfd.driver_version(), libraries)


def _generation_of(properties: Any) -> str:
    """'gfx942:sramecc+:xnack-' -> 'gfx942'."""
    return str(properties.gcnArchName).split(":")[0]
