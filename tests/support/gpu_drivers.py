"""Drivers of GPUs that this machine has not: NVIDIA's management library, AMD's files, and what torch says."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_devices.cuda import nvml
from omni_devices.rocm import kfd


class FakeNvml:
    """The calls of libnvidia-ml that are used, with its own calling convention: a code, and results by reference.

    Args:
        gpus: (model, uuid, major, minor) each, by PCI bus.
        failing: name of a call that returns an error.
    """

    def __init__(self, *gpus: tuple[str, str, int, int], failing: str = "") -> None:
        self.gpus = gpus
        self.failing = failing
        self.sessions = 0
        self.nvmlErrorString = lambda code: f"error {code}".encode()  # a function, so that restype can be set

    def _code(self, call: str) -> int:
        return 999 if call == self.failing else 0

    def nvmlInit_v2(self) -> int:
        self.sessions += 1
        return self._code("nvmlInit_v2")

    def nvmlShutdown(self) -> int:
        self.sessions -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: int) -> int:
        assert ctypes.sizeof(buffer) == size
        buffer.value = b"580.65.06"
        return self._code("nvmlSystemGetDriverVersion")

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return self._code("nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return self._code("nvmlDeviceGetHandleByIndex_v2")

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, buffer: Any, size: int) -> int:
        return self._text(handle, buffer, size, 0, "nvmlDeviceGetName")

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, buffer: Any, size: int) -> int:
        return self._text(handle, buffer, size, 1, "nvmlDeviceGetUUID")

    def nvmlDeviceGetCudaComputeCapability(self, handle: ctypes.c_void_p, major: Any, minor: Any) -> int:
        assert handle.value is not None
        gpu = self.gpus[handle.value - 1]
        major._obj.value, minor._obj.value = gpu[2:]
        return self._code("nvmlDeviceGetCudaComputeCapability")

    def _text(self, handle: ctypes.c_void_p, buffer: Any, size: int, field: int, call: str) -> int:
        assert handle.value is not None
        assert ctypes.sizeof(buffer) == size
        buffer.value = str(self.gpus[handle.value - 1][field]).encode()
        return self._code(call)


def install_nvml(monkeypatch: pytest.MonkeyPatch, *gpus: tuple[str, str, int, int], failing: str = "") -> FakeNvml:
    """Make the management library one with these GPUs, and clear the variables that hide some."""
    library = FakeNvml(*gpus, failing=failing)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: {nvml.LIBRARY: library}[name])
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return library


def install_kfd(monkeypatch: pytest.MonkeyPatch, folder: Path, *gpus: tuple[int, int]) -> Path:
    """A topology with one processor and these GPUs, (gfx_target_version, device_id) each; its folder."""
    for position, (version, device) in enumerate([(0, 0), *gpus]):
        node = folder / str(position)
        node.mkdir()
        text = f"cpu_cores_count 0\nsimd_count 8\ngfx_target_version {version}\ndevice_id {device}\nname\n"
        (node / "properties").write_text(text, encoding="utf-8")
    monkeypatch.setattr(kfd, "TOPOLOGY", folder)
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return folder


def torch_answers(
    *properties: SimpleNamespace, cuda: str | None = None, hip: str | None = None, **more: Any
) -> dict[str, Any]:
    """Behaviours for `simulate`: a torch that was built for a toolkit and sees GPUs of these properties.

    Args:
        more: names below `torch.cuda`, with what they do.
    """
    return {
        "torch.version.cuda": cuda,
        "torch.version.hip": hip,
        "torch.cuda.device_count": lambda: len(properties),
        "torch.cuda.get_device_properties": lambda device=None: properties[device],
        "torch.cuda.nccl.version": lambda: (2, 29, 7),
        "torch.backends.cudnn.version": lambda: 92000,
        **{f"torch.cuda.{name}": behaviour for name, behaviour in more.items()},
    }
