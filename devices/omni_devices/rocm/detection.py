"""Which generation the GPUs of this process are of, read from the driver's files, without a context."""

from __future__ import annotations

import os

from omni_devices.common.torch_cuda_api import Vendor, resolve_generation, visible_devices
from omni_devices.rocm import kfd
from omni_devices.rocm.generations import NAME
from omni_devices.rocm.kfd import Gpu
from omni_portable.contracts.errors import DeviceError

VENDOR = Vendor(build="hip", nodes=("/dev/kfd",), visibility=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
"""The runtime reads both variables, and vLLM refuses to start where they differ."""
LOWER_VISIBILITY = "ROCR_VISIBLE_DEVICES"
"""Hides GPUs from the runtime itself, whose numbers the two others then count in."""


def resolve(named: str) -> str:
    """The generation a device is made for; `named` '' where none was.

    Raises:
        DeviceError: another one is present than was named, or as :func:`present_generation`.
    """
    return resolve_generation(NAME, VENDOR, named, present_generation)


def present_generation() -> str:
    """Of the GPUs that this process may use.

    Raises:
        DeviceError: there is none, or they differ, or the visibility variables do.
    """
    visible = _visible(kfd.gpus())
    if not visible:
        raise DeviceError(
            f"the driver shows no GPU that this process may use ({kfd.TOPOLOGY})",
            remedy="start the container with --device /dev/kfd --device /dev/dri --group-add video --group-add render, "
            f"and look at {', '.join(VENDOR.visibility)} and {LOWER_VISIBILITY}",
        )
    if len({(gpu.generation, gpu.model) for gpu in visible}) > 1:
        raise DeviceError(
            "this process sees several different GPUs, which no one table describes: "
            + ", ".join(f"{gpu.index}: {gpu.generation} (device {gpu.model})" for gpu in visible),
            remedy=f"set HIP_VISIBLE_DEVICES to numbers of one kind, without {LOWER_VISIBILITY}",
        )
    return visible[0].generation


def mirrored_visibility() -> dict[str, str]:
    """Whichever visibility variable is set, for both names.

    Raises:
        DeviceError: both are set, and differ.
    """
    value = visible_devices(VENDOR.visibility)
    return {} if value is None else dict.fromkeys(VENDOR.visibility, value)


def _visible(gpus: list[Gpu]) -> list[Gpu]:
    """What the variables leave. Under ROCR_VISIBLE_DEVICES, and for GPUs named by UUID, all GPUs are returned, so that
    they have to be alike."""
    value = visible_devices(VENDOR.visibility)
    if value is None or os.environ.get(LOWER_VISIBILITY):
        return gpus
    entries = [entry.strip() for entry in value.split(",")]
    if entries == [""]:
        return []
    if all(entry.isdecimal() for entry in entries):
        return [gpu for gpu in gpus if str(gpu.index) in entries]
    return gpus
