"""The 'cuda' device as a whole: contract, identity, capabilities, environment, determinism, generators, memory."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from omni_devices.common import cumem_pool, gpu_generations
from omni_devices.cuda import SPEC
from omni_devices.cuda.device import CudaDevice
from omni_devices.cuda.generations import GENERATIONS
from omni_portable.contracts.device import Device
from omni_portable.contracts.errors import DeviceError, LifecycleError
from tests.support.gpu_drivers import install_nvml, torch_answers
from tests.support.vendor import installed, simulate

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def _gpu(name: str = "NVIDIA H100 80GB HBM3", major: int = 9, minor: int = 0, memory: int = 85 * 10**9):
    return SimpleNamespace(name=name, major=major, minor=minor, total_memory=memory)


@pytest.fixture
def device() -> CudaDevice:
    return CudaDevice("sm90")


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts back what determinism changes, for the tests that follow."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    reduced = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    flags = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    was = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = reduced
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = flags
    torch.use_deterministic_algorithms(was)


def test_registered_and_of_the_contract(device: CudaDevice) -> None:
    assert SPEC.load() is CudaDevice
    assert isinstance(device, Device)
    assert (device.name, device.generation, device.torch_device_type) == ("cuda", "sm90", "cuda")
    assert SPEC.capabilities["generations"] == tuple(GENERATIONS)
    assert device.collectives.backend == "nccl"


def test_the_generation_is_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, ("NVIDIA L40S", "GPU-1", 8, 9))
    assert CudaDevice().generation == "sm89"


def test_identity(monkeypatch: pytest.MonkeyPatch, device: CudaDevice) -> None:
    install_nvml(monkeypatch)
    with simulate(torch_answers(_gpu(), _gpu(memory=84 * 10**9), cuda="13.0"), stack="cuda"):
        identity = device.identity()
    assert (identity.name, identity.generation, identity.count) == ("cuda", "sm90", 2)
    assert (identity.model, identity.memory_bytes) == ("NVIDIA H100 80GB HBM3", 84 * 10**9)
    assert identity.driver == "580.65.06"
    expected = {"torch": torch.__version__, "cuda": "13.0", "cudnn": "92000", "nccl": "2.29.7"}
    assert dict(identity.libraries) == expected


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ([], "torch sees no GPU"),
        ([_gpu(), _gpu("NVIDIA H200")], r"NVIDIA H100 80GB HBM3 \(sm90\), NVIDIA H200 \(sm90\)"),
        ([_gpu("NVIDIA L4", 8, 9)], r"'cuda:sm90' stands for .* sees NVIDIA L4 \(sm89\)"),
    ],
)
def test_identity_refuses_gpus_that_differ(
    monkeypatch: pytest.MonkeyPatch, device: CudaDevice, seen: list[SimpleNamespace], says: str
) -> None:
    install_nvml(monkeypatch)
    with simulate(torch_answers(*seen, cuda="13.0"), stack="cuda"), pytest.raises(DeviceError, match=says):
        device.identity()


@pytest.mark.parametrize(
    ("generation", "fp8", "mx", "fp4"),
    [
        ("sm80", False, False, False),
        ("sm89", True, False, False),
        ("sm90", True, False, False),
        ("sm120", True, True, True),
    ],
)
def test_capabilities(generation: str, fp8: bool, mx: bool, fp4: bool) -> None:
    capabilities = CudaDevice(generation).capabilities()
    assert capabilities.default_dtype == "bfloat16"
    features = capabilities.features
    assert (features["fp8"], features["fp8_ocp"], features["fp8_fnuz"]) == (fp8, fp8, False)
    assert (features["mx"], features["fp4"], features["sleep_allocator"]) == (mx, fp4, True)


@pytest.mark.parametrize("generation", ["", *GENERATIONS])
def test_static_profile(generation: str) -> None:
    static = CudaDevice.static_profile(generation)
    assert (static.name, static.generation, static.torch_device_type) == ("cuda", generation, "cuda")
    assert (static.memory_bytes is None) == (generation == "")
    assert static.collective_backend == "nccl"
    assert set(static.default_attention.values()) <= set(static.attention_families)
    assert static.evidence == "not run on hardware"
    assert static.constraints.endswith("cuda.txt")
    assert static.image.endswith("Dockerfile.cuda")
    assert {need.distribution for need in static.packages} >= {"torch", "vllm", "vllm-omni", "flash-attn"}
    assert any("CUDA_VISIBLE_DEVICES" in note for note in static.notes)
    if generation:
        device = CudaDevice(generation)
        assert static.capabilities == device.capabilities()
        assert static.environment == device.environment("rollout")
        assert static.memory_bytes == min(GENERATIONS[generation].parts.values())
    assert static.capabilities.weight_channels == CudaDevice("sm80").collectives.weight_channels()


def test_the_profile_of_all_generations_promises_what_each_keeps() -> None:
    features = CudaDevice.static_profile().capabilities.features
    for generation in GENERATIONS:
        own = CudaDevice.static_profile(generation).capabilities.features
        assert all(own[name] for name, has in features.items() if has)
    assert not features["fp8"]


def test_environment(device: CudaDevice) -> None:
    roles = {role: device.environment(role) for role in ("local", "rollout", "reward", "actor")}
    assert roles["local"] == roles["rollout"] == roles["reward"]
    assert roles["actor"] == {**roles["local"], "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert roles["local"][WORKSPACE] == ":4096:8"
    assert roles["local"]["NCCL_NVLS_ENABLE"] == "0"
    assert "NCCL_NVLS_ENABLE" not in CudaDevice("sm80").environment("local")
    roles["local"].clear()
    assert device.environment("local")


def test_an_actor_s_environment_is_one_that_an_engine_pool_refuses(
    monkeypatch: pytest.MonkeyPatch, device: CudaDevice
) -> None:
    for name in cumem_pool.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for role, refused in (("rollout", False), ("local", False), ("actor", True)):
        for name, value in device.environment(role).items():
            monkeypatch.setenv(name, value)
        if refused:
            with pytest.raises(LifecycleError, match="PYTORCH_ALLOC_CONF"):
                cumem_pool.refuse_settings()
        else:
            cumem_pool.refuse_settings()


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("given", [None, ":16:8"])
def test_determinism_sets_what_it_reports(
    monkeypatch: pytest.MonkeyPatch, device: CudaDevice, given: str | None
) -> None:
    monkeypatch.setenv(WORKSPACE, given) if given else monkeypatch.delenv(WORKSPACE, raising=False)
    with simulate({"torch.cuda.is_initialized": lambda: False}, stack="cuda"):
        report = device.determinism.enable(2**40 + 7)
    expected = given or ":4096:8"
    assert os.environ[WORKSPACE] == report.applied[WORKSPACE] == expected
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    assert report.applied["torch.manual_seed"] == str(2**40 + 7)
    assert any("NCCL" in sentence for sentence in report.not_promised)


@pytest.mark.parametrize(
    ("value", "initialised", "says"),
    [
        (None, True, "is not set, and this process uses its GPU already"),
        (":0:0", False, "is ':0:0'"),
        (":0:0", True, "is ':0:0'"),
    ],
)
def test_determinism_comes_before_the_context_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, device: CudaDevice, value: str | None, initialised: bool, says: str
) -> None:
    monkeypatch.setenv(WORKSPACE, value) if value else monkeypatch.delenv(WORKSPACE, raising=False)
    was = torch.are_deterministic_algorithms_enabled()
    with simulate({"torch.cuda.is_initialized": lambda: initialised}, stack="cuda"):
        with pytest.raises(DeviceError, match=says) as caught:
            device.determinism.enable(0)
    assert caught.value.remedy == "start the process with CUBLAS_WORKSPACE_CONFIG=:4096:8"
    assert torch.are_deterministic_algorithms_enabled() == was


def test_a_context_is_no_fault_where_the_workspace_was_set_before_it(
    monkeypatch: pytest.MonkeyPatch, device: CudaDevice, restored: None
) -> None:
    monkeypatch.setenv(WORKSPACE, ":4096:8")
    with simulate({"torch.cuda.is_initialized": lambda: True}, stack="cuda"):
        assert device.determinism.enable(0).applied[WORKSPACE] == ":4096:8"


def test_torch_devices_are_counted(device: CudaDevice) -> None:
    with simulate(torch_answers(_gpu(), _gpu()), stack="cuda"):
        assert device.torch_device() == torch.device("cuda", 0)
        assert device.torch_device(1) == torch.device("cuda", 1)
        for index in (2, -1):
            with pytest.raises(DeviceError, match=f"no index {index}: torch sees 2 GPUs") as caught:
                device.torch_device(index)
            assert caught.value.choices == ("0", "1")


@pytest.mark.usefixtures("restored")
def test_generators_of_all_gpus(device: CudaDevice) -> None:
    states = [torch.arange(16, dtype=torch.uint8), torch.ones(16, dtype=torch.uint8)]
    restored_states: list[torch.Tensor] = []
    seeds: list[int] = []
    answers = torch_answers(
        _gpu(),
        _gpu(),
        get_rng_state_all=lambda: states,
        set_rng_state_all=restored_states.extend,
        manual_seed_all=seeds.append,
        synchronize=lambda device=None: seeds.append(-1),
    )
    with simulate(answers, stack="cuda"):
        device.manual_seed(3)
        first = torch.randn(4)
        device.manual_seed(3)
        assert torch.equal(torch.randn(4), first)
        state = device.rng_state()
        assert torch.as_tensor(state).shape == (2, 16)
        device.set_rng_state(state)
        with pytest.raises(DeviceError, match="of 1 GPUs, but torch sees 2"):
            device.set_rng_state(state[:1])
        device.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(restored_states, states, strict=True))
    assert 3 in seeds
    assert seeds[-1] == -1


def test_memory_figures_are_the_driver_s(device: CudaDevice) -> None:
    answers = torch_answers(
        _gpu(),
        mem_get_info=lambda device=None: (60, 100),
        memory_reserved=lambda device=None: 30,
        max_memory_reserved=lambda device=None: 35,
    )
    with simulate(answers, stack="cuda"):
        stats = device.memory.stats()
    assert (stats.total, stats.free, stats.used, stats.peak) == (100, 60, 30, 35)


@contextmanager
def _engine(usage: int = 0, available: bool = True) -> Iterator[SimpleNamespace]:
    """vLLM with its allocator, in a process that has not asked for it yet."""
    allocator = SimpleNamespace(usage=usage, tags=[], slept=[], woken=[])

    @contextmanager
    def use_memory_pool(tag: str | None = None) -> Iterator[None]:
        allocator.tags.append(tag)
        yield

    def sleep(offload_tags: tuple[str, ...] | str | None = None) -> None:
        allocator.slept.append(offload_tags)

    def wake_up(tags: list[str] | None = None) -> None:
        allocator.woken.append(tags)

    allocator.use_memory_pool, allocator.sleep, allocator.wake_up = use_memory_pool, sleep, wake_up
    allocator.get_current_usage = lambda: allocator.usage
    free = {"bytes": 100}
    behaviours = torch_answers(
        _gpu(),
        cuda="13.0",
        synchronize=lambda device=None: None,
        empty_cache=lambda: None,
        ipc_collect=lambda: None,
        mem_get_info=lambda device=None: (free["bytes"], 1000),
    )
    allocator.free = free
    behaviours["vllm.device_allocator.cumem.cumem_available"] = available
    behaviours["vllm.device_allocator.cumem.CuMemAllocator.get_instance"] = lambda: allocator
    cumem_pool._pool.cache_clear()
    cumem_pool._allocator.cache_clear()
    try:
        with installed({"vllm": "0.30.0"}), simulate(behaviours, stack="cuda"):
            yield allocator
    finally:
        cumem_pool._pool.cache_clear()
        cumem_pool._allocator.cache_clear()


@pytest.fixture
def clean_settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*cumem_pool.ALLOCATOR_VARIABLES, "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("clean_settings")
def test_the_engine_s_allocator_sleeps_and_wakes(device: CudaDevice) -> None:
    with _engine() as allocator:
        pool = device.memory.engine_pool()
        assert pool is device.memory.engine_pool()
        pool.check()
        with pool.use("weights"):
            allocator.usage = 500
        before = allocator.sleep

        def freeing(offload_tags: tuple[str, ...] | str | None = None) -> None:
            before(offload_tags)
            allocator.free["bytes"] += 500

        allocator.sleep = freeing
        assert pool.sleep(1).bytes == 500
        pool.wake()
    assert allocator.tags == ["weights"]
    assert allocator.slept == [("weights",)]
    assert allocator.woken == [None]


@pytest.mark.usefixtures("clean_settings")
def test_one_engine_a_process(device: CudaDevice) -> None:
    with _engine(usage=7):
        with pytest.raises(LifecycleError, match="holds 7 bytes"), device.memory.engine_pool().use("weights"):
            pass


@pytest.mark.usefixtures("clean_settings")
def test_a_vllm_without_the_allocator_is_refused(device: CudaDevice) -> None:
    with _engine(available=False):
        with pytest.raises(DeviceError, match="built without its cumem"), device.memory.engine_pool().use("weights"):
            pass


def test_without_vllm_there_is_no_engine_pool(device: CudaDevice) -> None:
    with installed({"vllm": None}), pytest.raises(DeviceError, match="vLLM, which is not installed") as caught:
        device.memory.engine_pool()
    assert caught.value.remedy == "pip install vllm==0.30.0"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, Expandable_Segments:true", "PYTORCH_ALLOC_CONF has expandable"),
        ("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True", "PYTORCH_HIP_ALLOC_CONF has expandable"),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", "has backend:cudamallocasync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "past the rollout engine's pool"),
    ],
)
def test_settings_under_which_nothing_is_freed_are_refused(
    clean_settings: pytest.MonkeyPatch, device: CudaDevice, name: str, value: str, says: str
) -> None:
    clean_settings.setenv(name, value)
    with _engine():
        pool = device.memory.engine_pool()
        with pytest.raises(LifecycleError, match=says) as caught:
            pool.check()
        with pytest.raises(LifecycleError, match=says), pool.use("weights"):
            pass
    assert name in caught.value.remedy


@pytest.mark.parametrize("value", ["", "expandable_segments:False", "backend:native,max_split_size_mb:128"])
def test_other_settings_are_not(clean_settings: pytest.MonkeyPatch, value: str) -> None:
    clean_settings.setenv("PYTORCH_CUDA_ALLOC_CONF", value)
    cumem_pool.refuse_settings()
    assert cumem_pool.allocator_setting() == (f"PYTORCH_CUDA_ALLOC_CONF={value}" if value else "")


def test_generations_are_data() -> None:
    for name, row in GENERATIONS.items():
        assert row.name == name
        assert row.memory_bytes % gpu_generations.GB == 0
