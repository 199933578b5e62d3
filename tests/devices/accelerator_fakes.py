"""An accelerator without hardware: torch's module of it, whose driver counts the storages it is told about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

GIB, MIB = 1 << 30, 1 << 20
CONTEXT = 300 * MIB
"""What the driver counts before anybody has allocated."""


@dataclass
class FakeModule:
    """Implements `DeviceModule` over host tensors.

    Args:
        owners: whose parameters, gradients and buffers are on the device.
        late: driver calls until freed memory shows.
        stays: bytes that the allocator does not give back.
        others: bytes of other processes.
    """

    owners: list[nn.Module] = field(default_factory=list)
    total: int = 80 * GIB
    late: int = 0
    stays: int = 0
    others: int = 0
    cached: int = 0
    calls: list[str] = field(default_factory=list)
    fail: str = ""
    _peak: int = 0
    _shown: int = CONTEXT

    def mem_get_info(self) -> tuple[int, int]:
        now = CONTEXT + self.memory_reserved() + self.others
        if now < self._shown and self.late > 0:
            self.late -= 1
            now = self._shown
        self._shown = now
        return self.total - now, self.total

    def memory_allocated(self) -> int:
        tensors = [tensor for owner in self.owners for tensor in (*owner.parameters(), *owner.buffers())]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        self._peak = max(self._peak, sum(storages.values()))
        return sum(storages.values())

    def memory_reserved(self) -> int:
        return max(self.memory_allocated(), self.stays) + self.cached

    def max_memory_allocated(self) -> int:
        return max(self._peak, self.memory_allocated())

    def max_memory_reserved(self) -> int:
        return max(self._peak, self.memory_reserved())

    def reset_peak_memory_stats(self) -> None:
        self._peak = 0

    def empty_cache(self) -> None:
        self._call("empty_cache")
        self.cached = 0

    def ipc_collect(self) -> None:
        self._call("ipc_collect")

    def synchronize(self) -> None:
        self._call("synchronize")

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, device: object) -> None:
        assert device == 0

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, new_state: Tensor) -> None:
        torch.set_rng_state(new_state)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail:
            raise RuntimeError(f"device error in {name}")


@dataclass
class FakeAllocation:
    size: int
    tag: str
    mapped: bool = True
    offloaded: bool = False


class FakeAllocator:
    """vLLM's allocator in shape and manners: sleeps as a whole, and maps twice what is woken twice."""

    def __init__(self, module: FakeModule) -> None:
        self.module = module
        self.allocations: list[FakeAllocation] = []
        self.tag = ""
        self.keep_mapped = 0
        self.fail: Callable[[], None] = lambda: None

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        self.tag = tag or "default"
        yield
        self.tag = ""

    def allocate(self, size: int) -> None:
        self.allocations.append(FakeAllocation(size, self.tag))
        self.module.others += size

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        assert isinstance(offload_tags, tuple)
        for allocation in self.allocations:
            self.fail()
            assert allocation.mapped, "unmapped twice"
            allocation.mapped, allocation.offloaded = False, allocation.tag in offload_tags
            self.module.others -= allocation.size
        self.module.others += self.keep_mapped

    def wake_up(self, tags: list[str] | None = None) -> None:
        for allocation in self.allocations:
            if tags is None or allocation.tag in tags:
                self.fail()
                assert not allocation.mapped, "mapped twice"
                allocation.mapped = True
                self.module.others += allocation.size

    def get_current_usage(self) -> int:
        return sum(allocation.size for allocation in self.allocations)
