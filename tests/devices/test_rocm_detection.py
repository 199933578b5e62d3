"""Which AMD GPUs are there: presence, generation, visibility, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from omni_devices.common import torch_cuda_api
from omni_devices.rocm import SPEC, detection, kfd
from omni_devices.rocm.device import RocmDevice
from omni_portable.contracts.errors import DeviceError
from tests.support.gpu_drivers import install_kfd, torch_answers
from tests.support.vendor import simulate

MI300X = (90402, 0x74A1)
MI325X = (90402, 0x74A5)
MI210 = (90010, 0x740F)


@pytest.mark.parametrize(
    ("target", "generation"), [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100")]
)
def test_target_versions_are_spelled_in_hexadecimal(target: int, generation: str) -> None:
    assert kfd.gfx_name(target) == generation


@pytest.mark.parametrize("target", [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950")])
def test_every_generation_is_read_from_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: tuple[int, str]
) -> None:
    install_kfd(monkeypatch, tmp_path, (target[0], 1), (target[0], 1))
    assert RocmDevice().generation == target[1]
    assert target[1] in SPEC.capabilities["generations"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gfx1100", "RDNA"),
        ("gfx1201", "RDNA"),
        ("gfx908", "before MI200"),
        ("gfx1250", "no row of the tables"),
        ("sm90", "one of NVIDIA's"),
    ],
)
def test_other_generations_are_refused_with_the_reason(name: str, says: str) -> None:
    for build in (RocmDevice, RocmDevice.static_profile):
        with pytest.raises(DeviceError, match=says) as caught:
            build(name)
        assert caught.value.choices == ("gfx90a", "gfx942", "gfx950")


def test_a_present_gpu_of_an_unknown_generation_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_kfd(monkeypatch, tmp_path, (110000, 0x744C))
    with pytest.raises(DeviceError, match="'gfx1100': it is a graphics part"):
        RocmDevice()


def test_processors_and_closed_gpus_are_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_kfd(monkeypatch, tmp_path, MI300X, MI325X)
    (tmp_path / "notes").mkdir()
    assert [(gpu.index, gpu.model, gpu.generation) for gpu in kfd.gpus()] == [
        (0, "0x74a1", "gfx942"),
        (1, "0x74a5", "gfx942"),
    ]
    original = Path.read_text

    def read_text(self: Path, encoding: str | None = None) -> str:
        if self.parent.name == "1":
            raise PermissionError(self)
        return original(self, encoding=encoding)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert [gpu.model for gpu in kfd.gpus()] == ["0x74a5"]


@pytest.mark.parametrize(
    ("variables", "generation"),
    [
        ({"HIP_VISIBLE_DEVICES": "0"}, "gfx942"),
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, "gfx90a"),
        ({"HIP_VISIBLE_DEVICES": "1, 2", "CUDA_VISIBLE_DEVICES": "1, 2"}, "gfx90a"),
    ],
)
def test_visible_gpus_of_one_kind_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], generation: str
) -> None:
    install_kfd(monkeypatch, tmp_path, MI300X, MI210, MI210)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert detection.present_generation() == generation


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HIP_VISIBLE_DEVICES": "GPU-0123"},
        {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"},  # the first number counts what the second leaves
    ],
)
def test_several_different_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str]
) -> None:
    install_kfd(monkeypatch, tmp_path, MI300X, MI325X)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeviceError, match=r"0: gfx942 \(device 0x74a1\), 1: gfx942 \(device 0x74a5\)"):
        RocmDevice()


def test_a_named_generation_is_held_against_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_kfd(monkeypatch, tmp_path, MI300X)
    vendor = torch_cuda_api.Vendor("hip", (str(tmp_path),), detection.VENDOR.visibility)
    monkeypatch.setattr(detection, "VENDOR", vendor)
    assert RocmDevice("gfx942").generation == "gfx942"
    with pytest.raises(DeviceError, match="'rocm:gfx950' was asked for, but the GPUs here are .* 'gfx942'"):
        RocmDevice("gfx950")


@pytest.mark.parametrize("gpus", [[], [MI300X]])
def test_no_visible_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: list[tuple[int, int]]) -> None:
    install_kfd(monkeypatch, tmp_path, *gpus)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match="shows no GPU") as caught:
        RocmDevice()
    assert "--device /dev/kfd" in caught.value.remedy


def test_visibility_variables_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_kfd(monkeypatch, tmp_path, MI300X)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for call in (RocmDevice, lambda: RocmDevice("gfx942").environment("actor")):
        with pytest.raises(DeviceError, match="HIP_VISIBLE_DEVICES='0', CUDA_VISIBLE_DEVICES='1'"):
            call()


def test_without_a_driver_nothing_else_is_asked() -> None:
    assert RocmDevice.available() == (False, f"no /dev/kfd; torch {torch.__version__} is built without ROCm")


@pytest.mark.parametrize(
    ("cuda", "hip", "count", "present", "says"),
    [
        (None, None, 0, False, "is built without ROCm"),
        ("13.0", None, 2, False, "is built for CUDA, not for ROCm"),
        (None, "7.2.53211", 2, True, "2 GPUs at"),
        (None, "7.2.53211", 0, False, "torch sees no GPU"),
    ],
)
def test_presence_needs_driver_build_and_gpus(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cuda: str | None,
    hip: str | None,
    count: int,
    present: bool,
    says: str,
) -> None:
    for name in detection.VENDOR.visibility:
        monkeypatch.delenv(name, raising=False)
    vendor = torch_cuda_api.Vendor("hip", (str(tmp_path),), detection.VENDOR.visibility)
    with simulate(torch_answers(*[SimpleNamespace()] * count, cuda=cuda, hip=hip), stack="rocm"):
        found = torch_cuda_api.available(vendor)
    assert found[0] is present
    assert says in found[1]


@pytest.mark.parametrize("packaged", [True, False])
def test_the_driver_s_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packaged: bool) -> None:
    monkeypatch.setattr(kfd, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(kfd, "KERNEL", tmp_path / "osrelease")
    (tmp_path / "osrelease").write_text("6.8.0-60-generic\n", encoding="utf-8")
    if packaged:
        (tmp_path / "version").write_text("6.14.14\n", encoding="utf-8")
    assert kfd.driver_version() == ("amdgpu 6.14.14" if packaged else "amdgpu of Linux 6.8.0-60-generic")
