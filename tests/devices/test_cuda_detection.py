"""Which NVIDIA GPUs are there: presence, generation, visibility, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from omni_devices.common import torch_cuda_api
from omni_devices.cuda import SPEC, detection, generations, nvml
from omni_devices.cuda.device import CudaDevice
from omni_portable.contracts.errors import DeviceError
from tests.support.gpu_drivers import install_nvml, torch_answers
from tests.support.vendor import simulate

H100 = ("NVIDIA H100 80GB HBM3", "GPU-aaaa-1", 9, 0)
L4 = ("NVIDIA L4", "GPU-bbbb-2", 8, 9)


def _nodes(*nodes: Path) -> torch_cuda_api.Vendor:
    return torch_cuda_api.Vendor("cuda", tuple(map(str, nodes)), detection.VENDOR.visibility)


@pytest.mark.parametrize(
    ("capability", "generation"),
    [((8, 0), "sm80"), ((8, 9), "sm89"), ((9, 0), "sm90"), ((10, 0), "sm100"), ((12, 0), "sm120")],
)
def test_every_generation_is_told_by_its_compute_capability(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], generation: str
) -> None:
    library = install_nvml(monkeypatch, ("A GPU", "GPU-1", *capability), ("A GPU", "GPU-2", *capability))
    assert detection.present_generation() == generation
    assert generation in SPEC.capabilities["generations"]
    assert library.sessions == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sm70", "before Ampere"),
        ("sm75", "before Ampere"),
        ("sm86", "shared memory"),
        ("sm103", "no row of its own"),
        ("sm130", "no row of the tables"),
        ("gfx942", "no row of the tables"),
        ("hopper", "no row of the tables"),
    ],
)
def test_other_generations_are_refused_with_the_reason(name: str, says: str) -> None:
    for build in (CudaDevice, CudaDevice.static_profile):
        with pytest.raises(DeviceError, match=says) as caught:
            build(name)
        assert caught.value.choices == ("sm80", "sm89", "sm90", "sm100", "sm120")


def test_a_present_gpu_of_an_unknown_generation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, ("NVIDIA A10", "GPU-1", 8, 6))
    with pytest.raises(DeviceError, match="'sm86': it shares sm80's instructions"):
        CudaDevice()


def test_the_library_counts_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, H100, L4)
    assert [(gpu.index, gpu.model, gpu.uuid, gpu.generation) for gpu in nvml.gpus()] == [
        (0, "NVIDIA H100 80GB HBM3", "GPU-aaaa-1", "sm90"),
        (1, "NVIDIA L4", "GPU-bbbb-2", "sm89"),
    ]
    assert nvml.driver_version() == "580.65.06"


@pytest.mark.parametrize(
    "call",
    [
        "nvmlInit_v2",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetCudaComputeCapability",
    ],
)
def test_a_failing_call_is_named(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    install_nvml(monkeypatch, H100, failing=call)
    with pytest.raises(DeviceError, match=rf"{call}.* failed with code 999: error 999"):
        nvml.gpus()


def test_without_the_library_the_remedy_names_the_container_setting() -> None:
    with pytest.raises(DeviceError, match="libnvidia-ml.so.1 cannot be loaded") as caught:
        CudaDevice()
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in caught.value.remedy


@pytest.mark.parametrize(
    ("variables", "generation"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, "sm89"),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "sm90"),
        ({"CUDA_VISIBLE_DEVICES": "1, 2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "sm89"),
    ],
)
def test_visible_gpus_of_one_kind_are_enough(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], generation: str
) -> None:
    install_nvml(monkeypatch, H100, L4, ("NVIDIA L4", "GPU-bbbb-3", 8, 9))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert detection.present_generation() == generation


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": "0"},  # the runtime's first GPU is the fastest, wherever it is plugged in
        {"CUDA_VISIBLE_DEVICES": "MIG-cccc"},
        {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    ],
)
def test_several_different_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    install_nvml(monkeypatch, H100, L4)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeviceError, match=r"0: NVIDIA H100 80GB HBM3 \(sm90\), 1: NVIDIA L4 \(sm89\)") as caught:
        CudaDevice()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caught.value.remedy


def test_different_models_of_one_generation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, H100, ("NVIDIA H200", "GPU-2", 9, 0))
    with pytest.raises(DeviceError, match="several different GPUs"):
        CudaDevice()


@pytest.mark.parametrize("named", ["", "sm90"])
def test_a_named_generation_is_held_against_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    install_nvml(monkeypatch, H100)
    monkeypatch.setattr(detection, "VENDOR", _nodes(tmp_path))
    assert CudaDevice(named).generation == "sm90"
    with pytest.raises(DeviceError, match="'cuda:sm80' was asked for, but the GPUs here are .* 'sm90'") as caught:
        CudaDevice("sm80")
    assert "device.name=cuda:sm90" in caught.value.remedy


def test_without_a_driver_a_named_generation_answers_from_tables() -> None:
    assert CudaDevice("sm80").capabilities().features["graphs"]


def test_hidden_gpus_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, H100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match="shows no GPU") as caught:
        CudaDevice()
    assert "CUDA_VISIBLE_DEVICES" in caught.value.remedy


def test_without_a_driver_nothing_else_is_asked() -> None:
    present, found = CudaDevice.available()
    assert not present
    assert found == f"no /dev/nvidiactl or /dev/dxg; torch {torch.__version__} is built without CUDA"


@pytest.mark.parametrize(
    ("cuda", "hip", "says"),
    [
        (None, None, "exists, but torch .* is built without CUDA"),
        (None, "7.2.53211", "exists, but torch .* is built for ROCm, not for CUDA"),
    ],
)
def test_a_driver_with_another_build_of_torch_is_absent(
    tmp_path: Path, cuda: str | None, hip: str | None, says: str
) -> None:
    with simulate(torch_answers(SimpleNamespace(), cuda=cuda, hip=hip), stack="cuda"):
        present, found = torch_cuda_api.available(_nodes(tmp_path / "missing", tmp_path))
    assert not present
    assert re.search(says, found)


@pytest.mark.parametrize(("count", "says"), [(1, "1 GPU at"), (8, "8 GPUs at")])
def test_driver_and_build_and_gpus_are_present(tmp_path: Path, count: int, says: str) -> None:
    with simulate(torch_answers(*[SimpleNamespace()] * count, cuda="13.0"), stack="cuda"):
        present, found = torch_cuda_api.available(_nodes(tmp_path))
    assert present
    assert found.startswith(says)
    assert "is built for CUDA 13.0" in found


def test_a_driver_without_visible_gpus_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with simulate(torch_answers(cuda="13.0"), stack="cuda"):
        present, found = torch_cuda_api.available(_nodes(tmp_path))
    assert not present
    assert found.endswith("torch sees no GPU with CUDA_VISIBLE_DEVICES='7'")


def test_no_torch_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(torch_cuda_api.importlib.util, "find_spec", lambda name: None)
    assert torch_cuda_api.torch_build() is None
    assert torch_cuda_api.available(_nodes(tmp_path)) == (
        False,
        f"{tmp_path} exists, but torch is not installed",
    )


@pytest.mark.parametrize(
    ("text", "built_for", "toolkit"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", "", ""),
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda", "13.0"),
        ("__version__ = '2.12.0'\ndebug = False\na, b = 1, 2\ncuda = None\nhip = '7.2'\n", "hip", "7.2"),
    ],
)
def test_the_build_of_torch_is_read_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, built_for: str, toolkit: str
) -> None:
    (tmp_path / "version.py").write_text(text, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "torch")
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torch_cuda_api.importlib.util, "find_spec", lambda name: spec)
    build = torch_cuda_api.torch_build()
    assert build is not None
    assert (build.built_for, build.toolkit) == (built_for, toolkit)
    assert build.version.startswith("2.1")


def test_the_file_says_what_the_loaded_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = torch_cuda_api.torch_build()
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_cuda_api.torch_build() == loaded


def test_looking_for_the_devices_loads_no_torch() -> None:
    code = (
        "import sys; from omni_devices.cuda.device import CudaDevice; from omni_devices.rocm.device import RocmDevice; "
        "[(device.available(), device.static_profile()) for device in (CudaDevice, RocmDevice)]; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_reasons_name_no_known_generation() -> None:
    assert not set(generations._RELATIVES) & set(generations.GENERATIONS)
