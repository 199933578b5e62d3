"""What is known of NVIDIA GPUs: from tables without hardware, from torch and the driver with it."""

from __future__ import annotations

from typing import Any

from omni_devices.common import gpu_profile
from omni_devices.common.gpu_profile import Tables
from omni_devices.cuda import generations, nvml, packages
from omni_devices.cuda.detection import VENDOR
from omni_devices.cuda.environment import environment
from omni_devices.cuda.families import TABLE
from omni_devices.cuda.generations import GENERATIONS, NAME
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
        "for equal sums over any placement of ranks start the run with NCCL_ALGO=allreduce:tree, NCCL_PROTO=Simple, "
        "NCCL_MIN_NCHANNELS=1 and NCCL_MAX_NCHANNELS=1: slower, and so not the default",
        "transformers replaces a missing FlashAttention package by a kernel that it downloads; here the missing "
        "package is an error instead",
        "several models of one process share diffusers' active attention backend: each call names its own",
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
        DeviceError: the GPUs differ or are of another generation, or the driver does not answer.
    """
    import torch

    libraries = {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    return gpu_profile.identity(NAME, generation, _generation_of, nvml.driver_version(), libraries)


def _generation_of(properties: Any) -> str:
    return f"sm{properties.major}{properties.minor}"
