"""Broken installations of a device's stack, found from files and metadata."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omni_devices.ascend import detection, host, npu_smi
from omni_devices.ascend import stack as ascend
from omni_devices.ascend.vllm_build import Build
from omni_devices.common import gpu_stack
from omni_devices.common.torch_cuda_api import TorchBuild
from omni_devices.cuda import stack as cuda
from omni_devices.rocm import stack as rocm
from omni_portable.contracts import registry
from tests.support.vendor import installed

CPU, CUDA, HIP = (
    TorchBuild("2.13.0+cpu", "", ""),
    TorchBuild("2.13.0", "cuda", "13.0"),
    TorchBuild("2.12.0", "hip", "7"),
)
NONE = {"torch-npu": None, "triton": None, "triton-ascend": None, "vllm-ascend": None}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """An empty root; `build(torch, folder of CANN, device nodes)` fills it and returns (root, environment)."""
    monkeypatch.setattr(npu_smi, "installed", lambda: False)
    monkeypatch.setattr(ascend.vllm_build, "installed", lambda: None)

    def build(torch=CPU, cann="", nodes=0):
        monkeypatch.setattr(ascend, "torch_build", lambda: torch)
        (tmp_path / "dev").mkdir(exist_ok=True)
        for name in ["davinci_manager", *(f"davinci{n}" for n in range(nodes))] if nodes else []:
            (tmp_path / "dev" / name).touch()
        if cann:
            (tmp_path / cann / "lib64").mkdir(parents=True)
        return tmp_path

    return build


def problems(root, environ=None, generation=""):
    return ascend.state(generation, root, environ or {}).problems


def test_nothing_installed_is_no_problem(machine):
    with installed(NONE):
        state = ascend.state("", machine(), {})
    assert (state.present, state.problems) == (False, ())
    assert "torch-npu is not installed" in state.found


def test_torch_npu_without_cann_breaks_torch(machine):
    with installed(NONE | {"torch-npu": "2.10.0.post4"}):
        (problem,) = problems(machine())
    assert (problem.distribution, problem.breaks_torch) == ("torch-npu", True)
    assert "2.10.0.post4 is installed, but no CANN toolkit" in problem.problem
    assert "pip uninstall -y torch-npu" in problem.remedy
    assert host.SET_ENV in problem.remedy


@pytest.mark.parametrize("home", ["usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann"])
def test_cann_must_be_sourced(machine, home):
    root = machine(cann=home)
    with installed(NONE | {"torch-npu": "2.10.0.post4"}):
        (problem,) = problems(root)
        assert (problem.remedy, problem.breaks_torch) == (host.SET_ENV, True)
        assert problems(root, {"ASCEND_HOME_PATH": str(root / home)}) == ()


def test_a_named_home_that_is_gone_is_no_cann(machine):
    root = machine(cann="usr/local/Ascend/cann")
    with installed(NONE | {"torch-npu": "2.10.0.post4"}):
        (problem,) = problems(root, {"ASCEND_HOME_PATH": str(root / "gone")})
    assert "no CANN toolkit" in problem.problem


def test_libraries_on_the_search_path_are_enough(machine):
    root = machine(cann="usr/local/Ascend/cann")
    folder = root / "usr/local/Ascend/cann/lib64"
    with installed(NONE | {"torch-npu": "2.10.0.post4"}):
        assert len(problems(root, {"LD_LIBRARY_PATH": f":{folder}"})) == 1
        (folder / ascend.LIBRARY).touch()
        assert problems(root, {"LD_LIBRARY_PATH": f":{folder}"}) == ()


@pytest.mark.parametrize("build", [CUDA, HIP])
def test_another_torch_beside_torch_npu_breaks_torch(machine, build):
    root = machine(build, cann="usr/local/Ascend/cann")
    with installed(NONE | {"torch-npu": "2.10.0.post4"}):
        (problem,) = problems(root, {"ASCEND_HOME_PATH": str(root / "usr/local/Ascend/cann")})
        assert (problem.distribution, problem.breaks_torch) == ("torch", True)
        assert f"torch {build.version} is built for" in problem.problem
        assert "--index-url https://download.pytorch.org/whl/cpu" in problem.remedy
    with installed(NONE):
        assert problems(root) == ()


def test_two_tritons(machine):
    with installed(NONE | {"triton": "3.4.0", "triton-ascend": "3.2.2"}):
        (problem,) = problems(machine())
    assert (problem.distribution, problem.breaks_torch) == ("triton", False)
    assert problem.remedy.startswith("pip uninstall -y triton-ascend; pip uninstall -y triton && pip install triton-as")


def test_vllm_ascend_of_another_generation(machine, monkeypatch):
    monkeypatch.setattr(ascend.vllm_build, "installed", lambda: Build("A2", True))
    with installed(NONE):
        assert problems(machine(), generation="a2") == ()
        assert problems(machine()) == ()
        (problem,) = problems(machine(), generation="a3")
    assert problem.distribution == "vllm-ascend"
    assert "SOC_VERSION=ascend910_9391" in problem.remedy


def test_an_npu_is_present_by_its_nodes(machine):
    root = machine(nodes=8)
    with installed(NONE):
        assert ascend.state("a3", root, {}).present
        assert detection.present(root)[0]


@pytest.mark.parametrize(("module", "right", "wrong"), [(cuda, CUDA, HIP), (rocm, HIP, CUDA)])
def test_torch_of_another_build(monkeypatch, tmp_path, module, right, wrong):
    node = tmp_path / "node"
    monkeypatch.setattr(gpu_stack, "torch_build", lambda: right)
    monkeypatch.setattr(module, "VENDOR", module.VENDOR.__class__(module.VENDOR.build, (str(node),), ()))
    assert not module.state("").present
    node.touch()
    assert module.state("").present
    assert module.state("").problems == ()
    for build in (CPU, wrong):
        monkeypatch.setattr(gpu_stack, "torch_build", lambda build=build: build)
        state = module.state("")
        assert not state.present
        (problem,) = state.problems
        assert (problem.distribution, problem.remedy, problem.breaks_torch) == ("torch", module.TORCH.install, False)
        assert build.version in problem.problem
    monkeypatch.setattr(gpu_stack, "torch_build", lambda: None)
    assert (module.state("").present, module.state("").problems) == (False, ())


@pytest.mark.parametrize("name", ["cuda", "rocm", "ascend"])
def test_a_stack_is_looked_at_without_torch(name):
    target = registry.spec("device", name).capabilities["stack_check"].partition(":")[0]
    code = (
        f"import sys, {target} as stack; stack.state(''); sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
