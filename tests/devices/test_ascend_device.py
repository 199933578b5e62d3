"""The Ascend device as a whole, over a simulated torch_npu: detection, identity, generators, tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from omni_devices.ascend import SPEC, detection, environment, generations, host, npu_smi, vllm_build
from omni_devices.ascend.device import AscendDevice
from omni_devices.ascend.facts import FACTS
from omni_portable.contracts.device import AttentionRequest, Component, Device
from omni_portable.contracts.errors import DeviceError
from tests.support.vendor import installed, simulate

NUMBERS = {"a2": 223, "a3": 250, "a5": 260}
CHIPS = {"a2": "Ascend910B3", "a3": "Ascend910_9391", "a5": "Ascend950PR_9579"}
TOTAL = 61 << 30


def chip(generation: str, **more: Any) -> dict[str, Any]:
    """Behaviours of torch_npu on a machine with two chips of the generation."""
    return {
        "torch_npu.npu.get_soc_version": lambda: NUMBERS[generation],
        "torch_npu.npu.get_device_name": lambda device_name=None: CHIPS[generation],
        "torch_npu.npu.device_count": lambda: 2,
        "torch_npu.npu.mem_get_info": lambda device=None: (TOTAL // 2, TOTAL),
        **more,
    }


@pytest.fixture(autouse=True)
def bare_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """No npu-smi, no vLLM-Ascend and no Ascend software but what a test brings."""
    monkeypatch.setattr(npu_smi, "installed", lambda: False)
    monkeypatch.setattr(vllm_build, "installed", lambda: None)
    monkeypatch.setattr(host, "driver_version", lambda root=host.ROOT: "25.5.2")
    monkeypatch.setattr(host, "cann_version", lambda home: "9.1.0")


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes npu-smi report a chip."""

    def report(name: str) -> None:
        monkeypatch.setattr(npu_smi, "installed", lambda: True)
        monkeypatch.setattr(npu_smi, "board", lambda: npu_smi.Board(name, "25.5.1"))

    return report


def test_registered_and_of_the_contract() -> None:
    assert SPEC.load() is AscendDevice
    device = AscendDevice("a2")
    assert isinstance(device, Device)
    assert (device.name, device.generation, device.torch_device_type) == ("ascend", "a2", "npu")
    with pytest.raises(DeviceError, match="no generation 'a4'"):
        AscendDevice("a4")


def test_selecting_and_planning_load_neither_torch_nor_torch_npu() -> None:
    code = (
        "import sys; from omni_devices.ascend.device import AscendDevice as A; A.available(); d = A('a3'); "
        "d.environment('actor'); d.capabilities(); d.memory; d.collectives; d.determinism; "
        "[A.static_profile(g) for g in ('', 'a2', 'a3', 'a5')]; "
        "from omni_portable.contracts.device import AttentionRequest as R; "
        "A.static_profile('a5').attention.select(R('transformer', 'bfloat16')); "
        "sys.exit(bool({'torch', 'torch_npu', 'vllm_ascend'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("generation", generations.NAMES)
def test_generation_by_number(generation: str) -> None:
    with simulate(chip(generation), stack="ascend") as simulation:
        device = AscendDevice()
        assert device.generation == generation
        assert device.generation == generation
    assert [name for name, *_ in simulation.calls] == ["torch_npu.npu.get_soc_version"]


@pytest.mark.parametrize("generation", generations.NAMES)
def test_generation_by_npu_smi_makes_no_context(generation: str, smi: Callable[[str], None]) -> None:
    smi(CHIPS[generation])
    with simulate({}, stack="ascend") as simulation:
        device = AscendDevice()
        assert device.generation == generation
        assert device.environment("actor")["HCCL_BUFFSIZE"] == "200"
    assert simulation.calls == []


def test_generation_by_name_where_the_number_is_younger_than_torch_npu() -> None:
    behaviours = {
        "torch_npu.npu.get_soc_version": lambda: -1,
        "torch_npu.npu.get_device_name": lambda device_name=None: "Ascend910_9363",
    }
    with simulate(behaviours, stack="ascend"):
        assert AscendDevice().generation == "a3"


@pytest.mark.parametrize(
    ("number", "name", "says"),
    [
        (202, "Ascend310P3", "SoC version 202: Ascend310P3, an inference chip"),
        (102, "Ascend910A", "SoC version 102: Ascend910A, a first-generation"),
        (241, "Ascend310B2", "SoC version 241: Ascend310B2, an edge chip"),
        (-1, "Ascend310P3", "SoC version -1 and the name 'Ascend310P3', which is unknown"),
        (270, "Ascend970", "SoC version 270 and the name 'Ascend970', which is unknown"),
    ],
)
def test_other_chips_are_refused_by_number(number: int, name: str, says: str) -> None:
    behaviours = {
        "torch_npu.npu.get_soc_version": lambda: number,
        "torch_npu.npu.get_device_name": lambda device_name=None: name,
    }
    with simulate(behaviours, stack="ascend"), pytest.raises(DeviceError, match=says) as caught:
        _ = AscendDevice().generation
    assert len(caught.value.choices) == 3


def test_other_chips_are_refused_by_npu_smi(smi: Callable[[str], None]) -> None:
    smi("Ascend310P3")
    with pytest.raises(DeviceError, match="'Ascend310P3', an inference chip"):
        _ = AscendDevice().generation


@pytest.mark.parametrize("use", [lambda d: d.identity(), lambda d: d.torch_device()], ids=["identity", "torch_device"])
def test_a_named_generation_is_held_against_the_chip(use: Callable[[AscendDevice], Any]) -> None:
    with (
        simulate(chip("a3"), stack="ascend"),
        pytest.raises(DeviceError, match="'ascend:a2' was chosen.*'a3'") as caught,
    ):
        use(AscendDevice("a2"))
    assert "set device.name=ascend:a3" in str(caught.value)


def test_npu_smi_and_torch_npu_must_agree(smi: Callable[[str], None]) -> None:
    smi(CHIPS["a5"])
    with simulate(chip("a3"), stack="ascend"), pytest.raises(DeviceError, match="'ascend:a5' was chosen.*'a3'"):
        AscendDevice().torch_device()


def test_vllm_ascend_of_another_generation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_build, "installed", lambda: vllm_build.Build("A2", has_extension=True))
    with simulate(chip("a3"), stack="ascend"), pytest.raises(DeviceError, match="built for A2.*'a3'"):
        AscendDevice().identity()
    with simulate(chip("a2"), stack="ascend"):
        assert AscendDevice().identity().generation == "a2"


@pytest.mark.parametrize("generation", generations.NAMES)
def test_identity(generation: str) -> None:
    versions = {"torch-npu": "2.10.0.post4", "vllm-ascend": "0.23.0", "mindiesd": None, "triton-ascend": None}
    with simulate(chip(generation), stack="ascend"), installed(versions):
        identity = AscendDevice().identity()
    assert (identity.name, identity.generation, identity.model) == ("ascend", generation, CHIPS[generation])
    assert (identity.count, identity.memory_bytes, identity.driver) == (2, TOTAL, "25.5.2")
    assert identity.libraries["CANN"] == "9.1.0"
    assert identity.libraries["torch-npu"] == "2.10.0.post4"
    assert identity.libraries["torch"] == torch.__version__
    assert "mindiesd" not in identity.libraries


def test_a_driver_without_its_file(monkeypatch: pytest.MonkeyPatch, smi: Callable[[str], None]) -> None:
    monkeypatch.setattr(host, "driver_version", lambda root=host.ROOT: "")
    monkeypatch.setattr(host, "cann_version", lambda home: "")
    with simulate(chip("a2"), stack="ascend"):
        assert AscendDevice().identity().driver == "unknown"
        assert AscendDevice().identity().libraries["CANN"] == "unknown"
        smi(CHIPS["a2"])
        assert AscendDevice().identity().driver == "25.5.1"
        monkeypatch.setattr(npu_smi, "board", lambda: npu_smi.Board(CHIPS["a2"], ""))
        assert AscendDevice().identity().driver == "unknown"


def test_torch_devices() -> None:
    with simulate(chip("a2"), stack="ascend") as simulation:
        device = AscendDevice()
        assert device.torch_device() == torch.device("npu", 0)
        assert device.torch_device(1) == torch.device("npu", 1)
        for index in (2, -1):
            with pytest.raises(DeviceError, match=f"no index {index}") as caught:
                device.torch_device(index)
            assert caught.value.choices == ("0", "1")
    assert [name for name, *_ in simulation.calls].count("torch_npu.npu.get_soc_version") == 2, "found, then confirmed"


@pytest.mark.parametrize(
    ("failure", "says", "remedy"),
    [
        (None, "the module 'torch_npu' is not installed", "pip install torch==2.10.0+cpu torch-npu==2.10.0.post4"),
        (
            RuntimeError("libhccl.so: cannot open"),
            "2.10.0.post4 is installed but does not load: libhccl.so",
            "set_env.sh",
        ),
        (ImportError("libascendcl.so: no such file"), "does not load: libascendcl.so", "set_env.sh"),
    ],
    ids=["missing", "no CANN", "no library"],
)
def test_torch_npu_that_does_not_load(failure: Exception | None, says: str, remedy: str) -> None:
    with simulate({"torch_npu": failure}, stack="ascend"), installed({"torch-npu": "2.10.0.post4"}):
        with pytest.raises(DeviceError, match=says) as caught:
            AscendDevice("a2").torch_device()
    assert remedy in str(caught.value)


def test_generators_and_waiting() -> None:
    states = [torch.zeros(4, dtype=torch.uint8)]
    behaviours = {
        "torch_npu.npu.synchronize": lambda device=None: None,
        "torch_npu.npu.manual_seed_all": lambda seed: states.append(torch.full((4,), seed, dtype=torch.uint8)),
        "torch_npu.npu.get_rng_state": lambda device="npu": states[-1],
        "torch_npu.npu.set_rng_state": lambda new_state, device="npu": states.append(new_state),
    }
    host_state = torch.get_rng_state()
    try:
        with simulate(behaviours, stack="ascend") as simulation:
            device = AscendDevice("a5")
            device.manual_seed(7)
            drawn = torch.rand(3)
            state = device.rng_state()
            assert state.tolist() == [7] * 4
            device.manual_seed(8)
            device.set_rng_state(state)
            assert torch.equal(device.rng_state(), state)
            device.manual_seed(7)
            assert torch.equal(torch.rand(3), drawn), "the host's generator is seeded too"
            device.synchronize()
        assert simulation.calls[-1][0] == "torch_npu.npu.synchronize"
    finally:
        torch.set_rng_state(host_state)


@pytest.mark.parametrize("generation", generations.NAMES)
def test_static_profile_and_device_say_the_same(generation: str) -> None:
    device, static = AscendDevice(generation), AscendDevice.static_profile(generation)
    live = device.capabilities()
    assert live == static.capabilities
    assert (static.name, static.generation, static.torch_device_type) == ("ascend", generation, "npu")
    assert static.collective_backend == device.collectives.backend == "hccl"
    assert live.weight_channels == device.collectives.weight_channels() == ("ipc", "broadcast", "shared_memory")
    assert live.default_dtype == live.dtypes[0] == "bfloat16"
    assert "float64" not in live.dtypes
    assert not live.features["float64"]
    assert live.features["fp8"] == live.features["mx"] == (generation == "a5")
    assert static.evidence == "not run on hardware"
    assert static.image == f"dockerfiles/Dockerfile.ascend --build-arg SOC={generation}"
    for role in ("local", "actor", "rollout", "reward"):
        assert static.environment.items() <= device.environment(role).items()


def test_an_older_driver_offers_no_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "driver_version", lambda root=host.ROOT: "25.2.0")
    device = AscendDevice("a3")
    assert device.capabilities().weight_channels == ("broadcast", "shared_memory")
    assert device.collectives.weight_channels() == ("broadcast", "shared_memory")
    assert not device.capabilities().features["ipc"]


@pytest.mark.parametrize("generation", generations.NAMES)
def test_planning_selects_like_the_device(generation: str) -> None:
    static = AscendDevice.static_profile(generation)
    assert static.attention is not None
    assert set(static.default_attention.values()) <= set(static.attention_families)
    with installed({"torch": "2.10.0", "torch-npu": "2.10.0.post4"}):
        for component in get_args(Component):
            request = AttentionRequest(component, "bfloat16", backward=True)
            planned, chosen = static.attention.select(request), AscendDevice(generation).attention.select(request)
            assert (planned.actor, planned.rollout) == (chosen.actor, chosen.rollout)
            assert planned.family == static.default_attention[component]


def test_without_a_generation_planning_takes_the_first_and_says_so() -> None:
    static = AscendDevice.static_profile()
    assert static.generation == "a2"
    assert static.notes[0] == "no generation was named: these are facts of 'a2'"
    assert AscendDevice.static_profile("a2").notes == static.notes[1:]
    with pytest.raises(DeviceError, match="no generation '310p'"):
        AscendDevice.static_profile("310p")


def test_memory_of_planning_is_that_of_the_smallest_product() -> None:
    sizes = {name: AscendDevice.static_profile(name).memory_bytes for name in generations.NAMES}
    assert sizes == {"a2": 32 << 30, "a3": 64 << 30, "a5": 96 << 30}
    profile = AscendDevice.static_profile("a2")
    assert 4 << 30 < profile.reserved_bytes < 8 << 30
    assert any("910B1 to 910B3 have 64 GiB" in note for note in profile.notes)
    assert any("quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12" in note for note in profile.notes)


def test_packages_of_the_stack() -> None:
    needs = {need.distribution: need for need in AscendDevice.static_profile("a3").packages}
    assert needs["torch"].specifier == "==2.10.0"
    assert needs["torch-npu"].specifier == "==2.10.0.post4"
    assert not needs["torch-npu"].optional
    assert "SOC_VERSION=ascend910_9391" in needs["vllm-ascend"].install
    assert "mirrors.huaweicloud.com" in needs["triton-ascend"].install
    assert all(needs[name].optional for name in ("vllm-ascend", "triton-ascend", "mindiesd"))


def test_available_needs_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present, found = AscendDevice.available()
    assert not present
    assert "/dev/davinci" in found
    for name in ("davinci0", "davinci_manager"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    monkeypatch.setattr(detection.present, "__defaults__", (tmp_path,))
    assert AscendDevice.available()[0]


ROLES = ("local", "actor", "rollout", "reward", "driver")


@pytest.mark.parametrize("generation", generations.NAMES)
def test_variables_that_differ_between_generations(generation: str) -> None:
    expected: Mapping[str, str | None] = {"a2": "HOST", "a3": "AI_CPU", "a5": None}
    for role in ROLES[:-1]:
        variables = environment.variables(generation, role)
        assert variables.get("HCCL_OP_EXPANSION_MODE") == expected[generation]
        assert variables.get("HCCL_INTER_HCCS_DISABLE") == ("FALSE" if generation == "a3" else None)
        assert variables["HCCL_CONNECT_TIMEOUT"] == "600"
        assert FACTS[generation].hccl.items() <= variables.items()


@pytest.mark.parametrize("generation", generations.NAMES)
def test_expandable_segments_only_where_no_engine_sleeps(generation: str) -> None:
    device = AscendDevice(generation)
    settings = {role: device.environment(role).get("PYTORCH_NPU_ALLOC_CONF") for role in ROLES}
    assert settings == {
        "local": "expandable_segments:False",
        "actor": "expandable_segments:True",
        "rollout": "expandable_segments:False",
        "reward": "expandable_segments:True",
        "driver": None,
    }
    rollout = device.environment("rollout")
    assert rollout["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert rollout["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert rollout["MINDIE_SD_FA_TYPE"] == "fused_attn_score"
    assert "VLLM_ASCEND_ENABLE_NZ" not in device.environment("actor")


def test_a_driver_process_imports_torch_without_cann() -> None:
    assert environment.variables("a2", "driver") == {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert environment.variables("a2", "actor")["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"


def test_visible_devices_ascend() -> None:
    assert environment.visible_devices([3, 0, 10, 3]) == "0,3,10"
    assert environment.visible_devices([]) == ""


def test_answers_are_the_callers_own() -> None:
    device = AscendDevice("a2")
    device.environment("actor")["HCCL_BUFFSIZE"] = "changed"
    assert device.environment("actor")["HCCL_BUFFSIZE"] == "200"
    assert device.memory is device.memory
    assert device.collectives is device.collectives
