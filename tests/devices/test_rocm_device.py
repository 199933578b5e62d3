"""The 'rocm' device as a whole: contract, identity, capabilities, environment, determinism, engine pool."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from omni_devices.common import cumem_pool
from omni_devices.cuda.device import CudaDevice
from omni_devices.rocm import SPEC, detection, kfd
from omni_devices.rocm.device import RocmDevice
from omni_devices.rocm.generations import GENERATIONS
from omni_portable.contracts.device import Device
from omni_portable.contracts.errors import DeviceError
from tests.support.gpu_drivers import torch_answers
from tests.support.vendor import installed, simulate


def _gpu(arch: str = "gfx942:sramecc+:xnack-", name: str = "AMD Instinct MI300X"):
    # torch makes up a capability of 9.x, which on NVIDIA GPUs would be Hopper's
    return SimpleNamespace(name=name, gcnArchName=arch, major=9, minor=4, total_memory=206 * 10**9)


@pytest.fixture(autouse=True)
def everything_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*detection.VENDOR.visibility, detection.LOWER_VISIBILITY):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def device() -> RocmDevice:
    return RocmDevice("gfx942")


def test_registered_and_of_the_contract(device: RocmDevice) -> None:
    assert SPEC.load() is RocmDevice
    assert isinstance(device, Device)
    assert (device.name, device.generation, device.torch_device_type) == ("rocm", "gfx942", "cuda")
    assert SPEC.capabilities["generations"] == tuple(GENERATIONS)
    assert device.collectives.backend == "nccl"


def test_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: RocmDevice) -> None:
    (tmp_path / "version").write_text("6.14.14\n", encoding="utf-8")
    monkeypatch.setattr(kfd, "DRIVER", tmp_path / "version")
    with simulate(torch_answers(_gpu(), _gpu(), hip="7.2.53211"), stack="rocm"):
        identity = device.identity()
    assert (identity.name, identity.generation, identity.count) == ("rocm", "gfx942", 2)
    assert (identity.model, identity.driver) == ("AMD Instinct MI300X", "amdgpu 6.14.14")
    expected = {"torch": torch.__version__, "hip": "7.2.53211", "miopen": "92000", "nccl": "2.29.7"}
    assert dict(identity.libraries) == expected


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ([_gpu("gfx90a:sramecc+:xnack-", "AMD Instinct MI210")], r"sees AMD Instinct MI210 \(gfx90a\)"),
        ([_gpu(), _gpu("gfx950")], r"\(gfx942\), AMD Instinct MI300X \(gfx950\)"),
    ],
)
def test_identity_refuses_gpus_that_differ(device: RocmDevice, seen: list[SimpleNamespace], says: str) -> None:
    with simulate(torch_answers(*seen, hip="7.2"), stack="rocm"), pytest.raises(DeviceError, match=says):
        device.identity()


@pytest.mark.parametrize(
    ("generation", "flavours", "sleeps"),
    [
        ("gfx90a", (False, False, False), False),
        ("gfx942", (True, False, True), True),
        ("gfx950", (True, True, False), True),
    ],
)
def test_capabilities(generation: str, flavours: tuple[bool, bool, bool], sleeps: bool) -> None:
    features = RocmDevice(generation).capabilities().features
    assert (features["fp8"], features["fp8_ocp"], features["fp8_fnuz"]) == flavours
    assert features["sleep_allocator"] is sleeps
    assert not features["batch_invariant"]
    assert set(features) == set(CudaDevice("sm90").capabilities().features)


@pytest.mark.parametrize("generation", ["", *GENERATIONS])
def test_static_profile(generation: str) -> None:
    static = RocmDevice.static_profile(generation)
    assert (static.name, static.generation, static.torch_device_type) == ("rocm", generation, "cuda")
    assert (static.memory_bytes is None) == (generation == "")
    assert set(static.default_attention.values()) <= set(static.attention_families)
    assert static.evidence == "not run on hardware"
    assert static.constraints.endswith("rocm.txt")
    assert static.image.endswith("Dockerfile.rocm")
    assert any("HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES" in note for note in static.notes)
    if generation:
        assert static.capabilities == RocmDevice(generation).capabilities()
        assert static.environment == RocmDevice(generation).environment("rollout")


def test_environment(device: RocmDevice) -> None:
    local = device.environment("local")
    assert local["HSA_ENABLE_IPC_MODE_LEGACY"] == "1"
    assert device.environment("actor") == {**local, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert "PYTORCH_ALLOC_CONF" not in RocmDevice("gfx90a").environment("actor")
    assert "CUDA_VISIBLE_DEVICES" not in local


@pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_a_visibility_variable_comes_back_under_both_names(
    monkeypatch: pytest.MonkeyPatch, device: RocmDevice, name: str
) -> None:
    monkeypatch.setenv(name, "2,3")
    environment = device.environment("rollout")
    assert (environment["HIP_VISIBLE_DEVICES"], environment["CUDA_VISIBLE_DEVICES"]) == ("2,3", "2,3")


def test_determinism_needs_no_variable_before_the_context(device: RocmDevice) -> None:
    was = torch.are_deterministic_algorithms_enabled()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    reduced = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    try:
        with simulate({}, stack="rocm"):
            report = device.determinism.enable(5)
        assert cudnn.deterministic
        assert not matmul.allow_tf32
    finally:
        torch.use_deterministic_algorithms(was)
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = flags
        matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = reduced
    assert report.applied["torch.manual_seed"] == "5"
    assert "CUBLAS_WORKSPACE_CONFIG" not in report.applied
    assert any("batch-invariant" in sentence for sentence in report.not_promised)


def test_the_engine_s_allocator_is_for_mi300_and_later(device: RocmDevice) -> None:
    with installed({"vllm": "0.30.0"}):
        assert device.memory.engine_pool() is cumem_pool.engine_pool()
        with pytest.raises(DeviceError, match="'rocm:gfx90a', only on MI300") as caught:
            RocmDevice("gfx90a").memory.engine_pool()
    assert "rollout.sleep_level=0" in caught.value.remedy


def test_another_vendor_s_torch_is_not_claimed_by_both() -> None:
    for cuda, hip in (("13.0", None), (None, "7.2")):
        with simulate(torch_answers(_gpu(), cuda=cuda, hip=hip), stack="rocm"):
            found = [device.available()[1] for device in (CudaDevice, RocmDevice)]
        assert sum("is built for" in text and ", not for" not in text for text in found) == 1
