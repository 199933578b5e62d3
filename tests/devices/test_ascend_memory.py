"""Memory of an NPU: figures of a simulated driver, and vLLM-Ascend's allocator put to sleep by its own signatures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from omni_devices.ascend import memory, vllm_build
from omni_devices.ascend.device import AscendDevice
from omni_portable.contracts.device import EnginePool
from omni_portable.contracts.errors import DeviceError, LifecycleError
from tests.support.vendor import simulate

TOTAL = 1 << 40
GOOD = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:False", "VLLM_ASCEND_ENABLE_NZ": "0"}


class CaMem:
    """Keeps allocations like vLLM-Ascend's allocator; `leak` bytes are not given back in sleep."""

    def __init__(self, leak: int = 0) -> None:
        self.leak = leak
        self.mapped: dict[int, bool] = {}
        self.pointer_to_data: dict[int, Any] = {}
        self.tags: list[str | None] = []
        self.offloaded: Any = None

    def allocate(self, size: int, tag: str) -> None:
        address = len(self.pointer_to_data)
        self.pointer_to_data[address] = SimpleNamespace(handle=(0, size, address, 0), tag=tag)
        self.mapped[address] = True

    @property
    def used(self) -> int:
        return sum(self.pointer_to_data[address].handle[1] for address, is_mapped in self.mapped.items() if is_mapped)

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        self.tags.append(tag)
        yield

    def sleep(self, offload_tags: Any = None) -> None:
        self.offloaded = offload_tags
        for address, data in self.pointer_to_data.items():
            self.mapped[address] = data.tag == "sleep_persistent"

    def wake_up(self, tags: list[str] | None = None) -> None:
        for address, data in self.pointer_to_data.items():
            if data.tag != "sleep_persistent" and (tags is None or data.tag in tags):
                assert not self.mapped[address], "mapped twice"
                self.mapped[address] = True

    def get_current_usage(self) -> int:
        return sum(data.handle[1] for data in self.pointer_to_data.values())


def behaviours(allocator: CaMem) -> dict[str, Any]:
    asleep = lambda: any(not is_mapped for is_mapped in allocator.mapped.values())  # noqa: E731
    return {
        "torch_npu.npu.mem_get_info": lambda device=None: (
            TOTAL - allocator.used - (allocator.leak if asleep() else 0),
            TOTAL,
        ),
        "torch_npu.npu.synchronize": lambda device=None: None,
        "torch_npu.npu.ipc_collect": lambda: None,
        "torch_npu.npu.empty_cache": lambda: None,
        "vllm_ascend.device_allocator.camem.CaMemAllocator.get_instance": lambda: allocator,
    }


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process of its own for every test: good settings, a good build, and no pool yet."""
    for name in ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_NPU_MEMORY_CACHING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    build(monkeypatch, "A3")
    memory._pool.cache_clear()
    yield
    memory._pool.cache_clear()


def build(monkeypatch: pytest.MonkeyPatch, device_type: str | None, has_extension: bool = True) -> None:
    found = None if device_type is None else vllm_build.Build(device_type, has_extension)
    monkeypatch.setattr(vllm_build, "installed", lambda: found)


def pool() -> EnginePool:
    return AscendDevice("a3").memory.engine_pool()


def test_figures_are_the_drivers() -> None:
    figures = {
        "torch_npu.npu.mem_get_info": lambda device=None: (300, 1000),
        "torch_npu.npu.memory_reserved": lambda device=None: 400,
        "torch_npu.npu.max_memory_reserved": lambda device=None: 500,
    }
    with simulate(figures, stack="ascend"):
        stats = AscendDevice("a2").memory.stats()
    assert (stats.total, stats.free, stats.used, stats.peak) == (1000, 300, 400, 500)


def test_trimming_is_measured() -> None:
    free = iter((300, 450))
    figures = {
        "torch_npu.npu.mem_get_info": lambda device=None: (next(free), 1000),
        "torch_npu.npu.synchronize": lambda device=None: None,
        "torch_npu.npu.ipc_collect": lambda: None,
        "torch_npu.npu.empty_cache": lambda: None,
    }
    with simulate(figures, stack="ascend"):
        assert AscendDevice("a2").memory.trim() == 150


def test_a_pool_for_the_actor_is_named() -> None:
    assert AscendDevice("a2").memory.pool("actor").name == "actor"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("level", "offloaded"), [(1, ("weights",)), (2, ())])
def test_sleep_and_wake_of_an_engine(level: int, offloaded: tuple[str, ...]) -> None:
    allocator = CaMem()
    with simulate(behaviours(allocator), stack="ascend"):
        engine = pool()
        assert engine is pool(), "one allocator, one pool"
        for tag, size in (("weights", 1000), ("kv_cache", 600)):
            with engine.use(tag):  # type: ignore[arg-type]
                allocator.allocate(size, tag)
        allocator.allocate(1000, "sleep_persistent")
        slept = engine.sleep(level)
        assert (slept.bytes, allocator.offloaded) == (1600, offloaded)
        assert engine.wake(["weights"]).bytes == 1000
        assert engine.wake(["kv_cache"]).bytes == 600
    assert allocator.tags == ["weights", "kv_cache"]


def test_sleep_that_frees_too_little_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = CaMem(leak=500)
    with simulate(behaviours(allocator), stack="ascend"):
        engine = pool()
        monkeypatch.setattr(engine, "_wait_s", 0.0)
        allocator.allocate(1000, "weights")
        with pytest.raises(LifecycleError, match="freed 500 of 1000 bytes"):
            engine.sleep(1)
    assert allocator.used == 1000, "awake again"


def test_what_stays_mapped_is_known_by_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = CaMem()
    allocator.allocate(64, "sleep_persistent")
    allocator.allocate(1000, "weights")
    with simulate(behaviours(allocator), stack="ascend"):
        assert memory._kept() == 64
        from vllm_ascend.device_allocator.camem import CaMemAllocator

        monkeypatch.delattr(CaMemAllocator, "sleep_persistent_tag")
        assert memory._kept() == 0


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "PYTORCH_NPU_ALLOC_CONF=expandable_segments:False"),
        ("PYTORCH_NPU_ALLOC_CONF", "page_size:1g, expandable_segments:True", "expandable_segments:False"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:true", "PYTORCH_NPU_ALLOC_CONF=expandable_segments:False"),
        ("VLLM_ASCEND_ENABLE_NZ", "1", "set VLLM_ASCEND_ENABLE_NZ=0"),
        ("VLLM_ASCEND_ENABLE_NZ", "2", "set VLLM_ASCEND_ENABLE_NZ=0"),
        ("VLLM_ASCEND_ENABLE_NZ", None, "set VLLM_ASCEND_ENABLE_NZ=0"),
        ("PYTORCH_NO_NPU_MEMORY_CACHING", "1", "unset PYTORCH_NO_NPU_MEMORY_CACHING"),
    ],
)
def test_settings_that_stand_in_the_way(
    name: str, value: str | None, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = pool()
    engine.check()
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(LifecycleError, match=name) as caught:
        engine.check()
    assert remedy in str(caught.value)
    with simulate({}, stack="ascend"), pytest.raises(LifecycleError), engine.use("weights"):
        raise AssertionError("nothing may be allocated")


def test_other_settings_are_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:256,page_size:1g")
    pool().check()


def test_settings_as_they_are_shown() -> None:
    assert memory.allocator_setting() == "PYTORCH_NPU_ALLOC_CONF=expandable_segments:False"
    assert memory.allocator_setting({}) == ""
    both = {"PYTORCH_NPU_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:2", "HOME": "/"}
    assert memory.allocator_setting(both) == "PYTORCH_NPU_ALLOC_CONF=a:1 PYTORCH_ALLOC_CONF=b:2"


@pytest.mark.parametrize(
    ("device_type", "has_extension", "says"),
    [
        (None, False, "comes with vllm-ascend, which is not installed"),
        ("A2", True, "built for A2, but this device is 'a3'"),
        ("A3", False, "without its compiled part.*COMPILE_CUSTOM_KERNELS=0"),
    ],
)
def test_builds_without_an_allocator(
    device_type: str | None, has_extension: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(monkeypatch, device_type, has_extension)
    with pytest.raises(DeviceError, match=says) as caught:
        pool()
    assert "SOC_VERSION=ascend910_9391 COMPILE_CUSTOM_KERNELS=1" in str(caught.value)


def test_an_allocator_that_does_not_load() -> None:
    broken = {"vllm_ascend.device_allocator.camem": ImportError("No module named 'acl'")}
    with simulate(broken, stack="ascend"), pytest.raises(DeviceError, match="allocator does not load: No module"):
        pool().sleep()
