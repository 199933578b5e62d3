"""Which generation the GPUs of this process are of, asked of the driver, without a context."""

from __future__ import annotations

import os

from omni_devices.common.torch_cuda_api import Vendor, resolve_generation, visible_devices
from omni_devices.cuda import nvml
from omni_devices.cuda.generations import NAME
from omni_devices.cuda.nvml import Gpu
from omni_portable.contracts.errors import DeviceError

VENDOR = Vendor(build="cuda", nodes=("/dev/nvidiactl", "/dev/dxg"), visibility=("CUDA_VISIBLE_DEVICES",))
"""/dev/dxg is the driver's file under Windows' subsystem for Linux."""


def resolve(named: str) -> str:
    """The generation a device is made for; `named` '' where none was.

    Raises:
        DeviceError: another one is present than was named, or as :func:`present_generation`.
    """
    return resolve_generation(NAME, VENDOR, named, present_generation)


def present_generation() -> str:
    """Of the GPUs that this process may use.

    Raises:
        DeviceError: there is none, or they differ.
    """
    visible = _visible(nvml.gpus())
    if not visible:
        raise DeviceError(
            "the driver shows no GPU that this process may use",
            remedy="look at nvidia-smi, and at CUDA_VISIBLE_DEVICES in this process' environment",
        )
    if len({(gpu.generation, gpu.model) for gpu in visible}) > 1:
        raise DeviceError(
            "this process sees several different GPUs, which no one table describes: "
            + ", ".join(f"{gpu.index}: {gpu.model} ({gpu.generation})" for gpu in visible),
            remedy="set CUDA_VISIBLE_DEVICES to GPUs of one kind, and CUDA_DEVICE_ORDER=PCI_BUS_ID so that its numbers "
            "mean those above",
        )
    return visible[0].generation


def _visible(gpus: list[Gpu]) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES leaves. Numbers mean PCI order only under CUDA_DEVICE_ORDER=PCI_BUS_ID: without it, and
    for partitions of a GPU (MIG), which have no number here, all GPUs are returned, so that they have to be alike."""
    value = visible_devices(VENDOR.visibility)
    if value is None:
        return gpus
    entries = [entry.strip() for entry in value.split(",")]
    if entries == [""]:
        return []
    if all(entry.startswith("GPU-") for entry in entries):
        return [gpu for gpu in gpus if any(gpu.uuid.startswith(entry) for entry in entries)]
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if by_bus and all(entry.isdecimal() for entry in entries):
        return [gpu for gpu in gpus if str(gpu.index) in entries]
    return gpus
