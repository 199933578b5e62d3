"""NVIDIA's management library: which GPUs there are, without a context and without torch.

`libnvidia-ml.so.1` comes with the driver. It knows every GPU of the host, whatever CUDA_VISIBLE_DEVICES says, and
counts them by PCI bus; the runtime counts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omni_portable.contracts.errors import DeviceError

LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96
"""Bytes for names, UUIDs and versions; the library's own limit."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of the host; `generation` as in the device's tables ('sm90'), `index` by PCI bus."""

    index: int
    uuid: str
    model: str
    generation: str


def gpus() -> list[Gpu]:
    """Every GPU of the host, by PCI bus.

    Raises:
        DeviceError: the library is missing, or a call fails.
    """
    with _session() as library:
        count = ctypes.c_uint()
        _check(library, library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount_v2")
        return [_gpu(library, index) for index in range(count.value)]


def driver_version() -> str:
    """As in '580.65.06'.

    Raises:
        DeviceError: the library is missing, or the call fails.
    """
    with _session() as library:
        text = ctypes.create_string_buffer(_TEXT)
        _check(library, library.nvmlSystemGetDriverVersion(text, _TEXT), "nvmlSystemGetDriverVersion")
        return text.value.decode()


@contextmanager
def _session() -> Iterator[Any]:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"the driver's management library {LIBRARY} cannot be loaded: {error}",
            remedy="install the NVIDIA driver; start a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ) from error
    library.nvmlErrorString.restype = ctypes.c_char_p
    _check(library, library.nvmlInit_v2(), "nvmlInit_v2")
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, index: int) -> Gpu:
    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    model, uuid = ctypes.create_string_buffer(_TEXT), ctypes.create_string_buffer(_TEXT)
    code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    _check(library, code, f"nvmlDeviceGetHandleByIndex_v2 of GPU {index}")
    _check(library, library.nvmlDeviceGetName(handle, model, _TEXT), f"nvmlDeviceGetName of GPU {index}")
    _check(library, library.nvmlDeviceGetUUID(handle, uuid, _TEXT), f"nvmlDeviceGetUUID of GPU {index}")
    code = library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    _check(library, code, f"nvmlDeviceGetCudaComputeCapability of GPU {index}")
    return Gpu(index, uuid.value.decode(), model.value.decode(), f"sm{major.value}{minor.value}")


def _check(library: Any, code: int, call: str) -> None:
    if code:
        raise DeviceError(
            f"{call} failed with code {code}: {library.nvmlErrorString(code).decode()}",
            remedy="run nvidia-smi: it makes the same calls, and says more",
        )
