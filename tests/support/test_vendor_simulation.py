"""The simulated vendor modules: strict in every way, and gone afterwards."""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.vendor import installed, simulate
from tests.support.vendor_torch import REAL_DEVICE

CAMEM = "vllm_ascend.device_allocator.camem"
CUMEM = "vllm.device_allocator.cumem"


def test_functions_do_what_they_are_given() -> None:
    answers = {"torch_npu.npu.get_soc_version": lambda: 225, "torch.npu.mem_get_info": lambda device=None: (1, 2)}
    with simulate(answers, stack="ascend") as simulation:
        import torch_npu

        assert torch_npu.npu.get_soc_version() == 225
        assert torch.npu.mem_get_info(0) == (1, 2)
        assert torch.npu is torch_npu.npu is sys.modules["torch.npu"]
        assert torch.device("npu", 1).index == 1
        torch.manual_seed(0)  # torch itself asks its device modules
    assert simulation.calls == [
        ("torch_npu.npu.get_soc_version", (), {}),
        ("torch_npu.npu.mem_get_info", (0,), {}),
    ]


def test_what_the_real_module_lacks_does_not_exist() -> None:
    with simulate({}, stack="ascend"):
        import torch_npu

        with pytest.raises(AttributeError, match=r"torch_npu\.npu.* of torch-npu [\d.a-z]+ has no attribute 'nvtx'"):
            _ = torch_npu.npu.nvtx
        assert not hasattr(torch_npu.npu, "nvtx")
        assert hasattr(torch_npu.npu, "mem_get_info")
        with pytest.raises(ImportError):
            from vllm_ascend.device_allocator.camem import CuMemAllocator  # noqa: F401
        with pytest.raises(ModuleNotFoundError):
            import vllm_ascend.nothing  # noqa: F401


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1, 2), {}), ((), {"index": 1}), ((1,), {"device": 1})], ids=["many", "unknown", "twice"]
)
def test_arguments_are_those_of_the_real_function(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with simulate({"torch_npu.npu.mem_get_info": lambda *a, **k: (1, 2)}, stack="ascend"):
        import torch_npu

        with pytest.raises(TypeError, match=r"torch_npu\.npu\.mem_get_info\(device=None\)"):
            torch_npu.npu.mem_get_info(*args, **kwargs)


def test_operators_have_the_signatures_of_their_schemas() -> None:
    with simulate({"torch_npu.npu_fusion_attention": lambda *a, **k: (a[0],)}, stack="ascend"):
        import torch_npu

        assert torch_npu.npu_fusion_attention("q", "k", "v", 8, "BSND", scale=1.0, pre_tockens=1) == ("q",)
        with pytest.raises(TypeError, match="pre_tokens"):
            torch_npu.npu_fusion_attention("q", "k", "v", 8, "BSND", pre_tokens=1)
        with pytest.raises(TypeError, match="head_num"):
            torch_npu.npu_fusion_attention("q", "k", "v")
        with pytest.raises(AssertionError, match="npu_fused_infer_attention_score"):
            torch_npu.npu_fused_infer_attention_score("q", "k", "v", num_heads=1)


def test_a_function_without_behaviour_fails_by_name() -> None:
    with simulate({}, stack="ascend"):
        import torch_npu

        with pytest.raises(AssertionError, match=r"torch_npu\.npu\.synchronize\(\) was called"):
            torch_npu.npu.synchronize()
        with pytest.raises(AssertionError, match=r"torch_npu\.npu\.config was read"):
            _ = torch_npu.npu.config
        from vllm_ascend.device_allocator.camem import CaMemAllocator

        with pytest.raises(AssertionError, match="CaMemAllocator.get_instance"):
            CaMemAllocator.get_instance()
        with pytest.raises(AssertionError, match=r"CaMemAllocator\(\)"):
            CaMemAllocator()


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("torch_npu.npu.get_soc_versions", lambda: 1, AttributeError),
        ("torch.npu.nvtx", lambda: 1, AttributeError),
        (f"{CAMEM}.CaMemAllocator.discard_all", lambda: 1, AttributeError),
        ("torch.cuda.no_such_function", lambda: 1, AttributeError),
        ("torch.version.no_such_value", "1", AttributeError),
        ("nobody.knows", lambda: 1, AttributeError),
        ("torch_npu.npu.get_soc_version", 225, TypeError),
        ("torch.cuda.is_available", True, TypeError),
        ("torch_npu.npu", lambda: 1, TypeError),
    ],
)
def test_behaviours_are_for_what_exists(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error), simulate({name: value}, stack="ascend"):
        pass
    assert "torch_npu" not in sys.modules
    assert not hasattr(torch, "npu")
    assert torch.device is REAL_DEVICE


@pytest.mark.parametrize(
    ("stack", "module", "allocator"), [("ascend", CAMEM, "CaMemAllocator"), ("cuda", CUMEM, "CuMemAllocator")]
)
def test_results_are_held_to_the_class_that_the_real_function_returns(stack: str, module: str, allocator: str) -> None:
    fake = SimpleNamespace(sleep=lambda offload_tags: offload_tags, discard=lambda: None, current_tag="x")
    with simulate({f"{module}.{allocator}.get_instance": lambda: fake}, stack=stack) as simulation:
        found = getattr(sys.modules[module], allocator).get_instance()
        assert found.sleep(offload_tags=("weights",)) == ("weights",)
        assert simulation.calls[-1] == (f"{module}.{allocator}.sleep", (), {"offload_tags": ("weights",)})
        with pytest.raises(TypeError, match=r"sleep\(offload_tags=None\)"):
            found.sleep(tags=("weights",))
        with pytest.raises(AttributeError, match="unmap"):
            found.unmap()
        with pytest.raises(AssertionError, match="wake_up was used"):
            found.wake_up()
        found.current_tag = "y"
        assert fake.current_tag == "y"
        with pytest.raises(AttributeError, match="no attribute 'tag'"):
            found.tag = "y"


def test_constructors_and_methods_have_behaviours_too() -> None:
    made = {
        f"{CAMEM}.CaMemAllocator": lambda: SimpleNamespace(),
        f"{CAMEM}.CaMemAllocator.wake_up": lambda tags=None: f"woke {tags}",
        "vllm_ascend._build_info.__device_type__": "A3",
    }
    with simulate(made, stack="ascend"):
        from vllm_ascend import _build_info
        from vllm_ascend.device_allocator.camem import CaMemAllocator

        assert CaMemAllocator().wake_up(tags=["weights"]) == "woke ['weights']"
        assert CaMemAllocator.default_tag == "default"
        assert _build_info.__device_type__ == "A3"
        with pytest.raises(TypeError, match="CaMemAllocator"):
            CaMemAllocator(1)


@pytest.mark.parametrize("failure", [OSError("libhccl.so: cannot open"), RuntimeError("no CANN")])
def test_a_module_that_fails_to_load(failure: Exception) -> None:
    with simulate({"torch_npu": failure}, stack="ascend"):
        with pytest.raises(type(failure), match=str(failure)):
            import torch_npu  # noqa: F401
        assert not hasattr(torch, "npu")
        from vllm_ascend.device_allocator import camem  # noqa: F401


@pytest.mark.parametrize("name", ["torch_npu", "vllm_ascend.device_allocator", "flash_attn"])
def test_a_module_that_is_missing(name: str) -> None:
    with simulate({name: None}, stack="ascend"), pytest.raises(ModuleNotFoundError):
        __import__(name)


@pytest.mark.parametrize("stack", ["cuda", "rocm"])
def test_torch_is_patched_with_its_own_signatures(stack: str) -> None:
    before = {name: getattr(torch.cuda, name) for name in dir(torch.cuda)}
    hip = "7.0" if stack == "rocm" else None
    answers = {
        "torch.cuda.is_available": lambda: True,
        "torch.version.hip": hip,
        "torch.cuda.nccl.version": lambda: (2, 1),
    }
    with simulate(answers, stack=stack):
        assert torch.cuda.is_available()
        assert torch.version.hip == hip
        assert torch.cuda.nccl.version() == (2, 1)
        with pytest.raises(TypeError, match=r"torch\.cuda\.is_available"):
            torch.cuda.is_available(1)  # type: ignore[call-arg]
        with pytest.raises(AssertionError, match=r"torch\.cuda\.mem_get_info\(\) was called"):
            torch.cuda.mem_get_info()
        torch.manual_seed(0)  # a library's own calls are real
        assert torch.backends.cudnn.version() is None
    assert {name: getattr(torch.cuda, name) for name in dir(torch.cuda)} == before
    assert torch.version.hip is None


def test_enumerations_have_the_real_members() -> None:
    with simulate({}, stack="cuda"):
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        assert AttentionBackendEnum.FLASH_ATTN.name == "FLASH_ATTN"
        assert "FLASH_ATTN_9" not in AttentionBackendEnum.__members__


def test_everything_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimpleNamespace(mine=True)
    monkeypatch.setitem(sys.modules, "vllm_ascend", real)
    monkeypatch.setitem(sys.modules, "vllm_ascend.mine", real)
    before, path = dict(sys.modules), list(sys.meta_path)

    def fail() -> None:
        with simulate({"torch_npu.npu.get_soc_version": lambda: 1 / 0}, stack="ascend"):
            import torch_npu
            import vllm_ascend

            assert not hasattr(vllm_ascend, "mine")
            torch_npu.npu.get_soc_version()

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {name: module for name, module in sys.modules.items() if name in before} == before
    assert not {"torch_npu", "torch.npu", "torch_npu.npu"} & set(sys.modules)
    assert sys.meta_path == path
    assert not hasattr(torch, "npu")
    assert torch.device is REAL_DEVICE


def test_simulations_can_be_nested() -> None:
    with simulate({"torch_npu.npu.device_count": lambda: 1}, stack="ascend"):
        with simulate({"torch_npu.npu.device_count": lambda: 2}, stack="ascend"):
            assert torch.npu.device_count() == 2
        assert torch.npu.device_count() == 1


def test_installed_distributions() -> None:
    real = version("diffusers")
    with installed({"Flash_Attn": "2.8.3", "torch": None}):
        assert version("flash-attn") == "2.8.3"
        assert importlib.metadata.distribution("flash.attn").metadata["Name"] == "Flash_Attn"
        assert version("diffusers") == real
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            version("torch")
    assert version("torch") == torch.__version__
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        version("flash-attn")
