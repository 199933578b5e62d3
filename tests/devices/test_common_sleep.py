"""Sleep and wake on an accelerator that torch drives: copies, measured bytes, undoing, and what the driver reports."""

from __future__ import annotations

import inspect

import pytest
import torch
from accelerator_fakes import GIB, MIB, FakeModule
from torch import nn

from omni_devices.common import pinned, storages
from omni_devices.common.pinned import PinnedBacking, PinnedCopy
from omni_devices.common.sleep import SleepPool
from omni_devices.common.torch_memory import AcceleratorMemory, DeviceModule
from omni_portable.contracts import device as contract
from omni_portable.contracts.errors import DeviceError, LifecycleError


class Net(nn.Module):
    """Several dtypes, a view, a tie and odd sizes; `blocks` MiB in its largest parameter."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.big = nn.Parameter(torch.randn(blocks * MIB // 4))
        self.low = nn.Parameter(torch.randn(777).to(torch.bfloat16))
        self.tied = self.low
        self.register_buffer("table", torch.arange(1001, dtype=torch.int16))
        self.register_buffer("view", self.table[3::2])
        self.register_buffer("flags", torch.rand(33) > 0.5)
        self.register_buffer("wave", torch.randn(5, 3, dtype=torch.complex64))
        self.register_buffer("tiny", torch.randn(19).to(torch.float8_e4m3fn))
        self.register_buffer("empty", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.big[:4]


def raw(net: nn.Module) -> dict[str, bytes]:
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return {
        name: t.detach().contiguous().flatten().view(torch.uint8).numpy(force=True).tobytes()
        for name, t in tensors.items()
        if t.numel()
    }


def manager(module: FakeModule, setting: str = "", wait_s: float = 0.0) -> AcceleratorMemory:
    def none() -> contract.EnginePool:
        raise DeviceError("no engine here")

    return AcceleratorMemory(lambda: module, "cpu", none, lambda: setting)


def pool_of(module: FakeModule, *owners: nn.Module, setting: str = "", wait_s: float = 0.0) -> SleepPool:
    module.owners.extend(owners)
    pool = SleepPool("actor", PinnedBacking(lambda: module, "cpu", lambda: setting, wait_s=wait_s))
    for owner in owners:
        pool.register("weights", owner)
    return pool


def test_bits_and_identity_survive() -> None:
    module, net = FakeModule(), Net(40)
    kept, identity = raw(net), {name: id(p) for name, p in net.named_parameters()}
    pool = pool_of(module, net)
    assert isinstance(pool, contract.SleepPool)
    held = module.memory_allocated()
    for _ in range(3):
        down = pool.sleep(1)
        assert down.bytes == held
        assert module.memory_allocated() == 0
        assert net.big.untyped_storage().nbytes() == 0
        with pytest.raises(LifecycleError, match="asleep"):
            net(torch.ones(4))
        assert pool.wake().bytes == held
        assert raw(net) == kept
    assert {name: id(p) for name, p in net.named_parameters()} == identity
    assert net.tied is net.low
    net.table[5] = -3
    assert net.view[1] == -3


def test_a_graph_built_before_sleep_can_still_be_run_backward() -> None:
    module, net = FakeModule(), Net(1)
    pool = pool_of(module, net)
    loss = (net.big * net.big)[:4].sum()
    pool.sleep(1)
    pool.wake()
    loss.backward()
    assert torch.equal(net.big.grad[:4], 2 * net.big[:4])  # type: ignore[index]


def test_copies_are_complete_before_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    pool = pool_of(module, Net(1))
    order: list[str] = []
    release, copy = storages.release, PinnedCopy.__init__

    def released(slot: storages.Slot) -> None:
        order.extend([*module.calls, "release"])
        module.calls.clear()
        release(slot)

    def copied(self: PinnedCopy, *args: object, **kwargs: object) -> None:
        module.calls.clear()
        order.append("copy")
        copy(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(storages, "release", released)
    monkeypatch.setattr(PinnedCopy, "__init__", copied)
    pool.sleep(1)
    assert order[:3] == ["copy", "synchronize", "release"]
    assert module.calls == ["synchronize", "ipc_collect", "empty_cache"]


def test_blocks_are_shared_and_long_slots_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "CHUNK", 4096)
    net = Net(1)
    slots = storages.collect([("weights", net)], "cpu", set())["weights"]
    copy = PinnedCopy(slots, FakeModule(), pin=False)
    size = sum(slot.nbytes for slot in slots)
    assert all(block.nbytes <= 4096 for block in copy._blocks)
    assert size <= sum(block.nbytes for block in copy._blocks) < size + 64 * len(slots)
    assert len(copy._blocks) == -(-sum(block.nbytes for block in copy._blocks) // 4096)
    kept = raw(net)
    for slot in slots:
        storages.poison(slot)
    assert raw(net) != kept
    copy.restore(slots)
    assert raw(net) == kept
    copy.close()
    assert not copy._blocks


def test_a_storage_of_mixed_tensors_is_kept_whole() -> None:
    storage = torch.arange(11, dtype=torch.uint8)
    net = nn.Module()
    net.register_buffer("wide", storage[:8].view(torch.float32))
    net.register_buffer("narrow", storage[3:])
    pool = pool_of(FakeModule(), net)
    pool.sleep(1)
    pool.wake()
    assert storage.tolist() == list(range(11))


def test_level_2_keeps_buffers_and_poisons_the_rest() -> None:
    module, net = FakeModule(), Net(2)
    kept = raw(net)
    pool = pool_of(module, net)
    pool.sleep(2)
    pool.wake()
    assert torch.isnan(net.big).all()
    assert torch.isnan(net.low).all()
    assert {name: bits for name, bits in raw(net).items() if name not in ("big", "low")} == {
        name: bits for name, bits in kept.items() if name not in ("big", "low")
    }


def test_a_driver_that_reports_late_is_waited_for() -> None:
    module = FakeModule(late=3)
    pool = pool_of(module, Net(64), wait_s=30.0)
    assert pool.sleep(1).bytes >= 64 * MIB
    assert module.late == 0


def test_memory_that_stays_is_an_error_and_undone() -> None:
    module, net = FakeModule(stays=GIB), Net(64)
    kept = raw(net)
    pool = pool_of(module, net, setting="max_split_size_mb:64")
    with pytest.raises(LifecycleError, match=r"freed 0 of 671\d+ bytes; everything is awake again") as error:
        pool.sleep(1)
    assert "keeps 1073741824 bytes in segments" in error.value.remedy
    assert "which is now: max_split_size_mb:64" in error.value.remedy
    assert raw(net) == kept
    net(torch.ones(4))
    module.stays = 0
    pool.sleep(1)


def test_memory_that_others_take_is_told_apart() -> None:
    module, net = FakeModule(), Net(64)
    pool = pool_of(module, net)

    class Greedy(FakeModule):
        def empty_cache(self) -> None:
            if not self.memory_allocated():
                self.others = 60 * MIB

    greedy = Greedy(owners=module.owners)
    pool._backing._module = lambda: greedy  # type: ignore[attr-defined]
    with pytest.raises(LifecycleError, match="which process on this device allocated meanwhile.*: not set"):
        pool.sleep(1)


def test_lost_contents_stay_asleep() -> None:
    module, net = FakeModule(stays=GIB), Net(64)
    pool = pool_of(module, net)
    with pytest.raises(LifecycleError, match="the contents are lost and the tags stay asleep"):
        pool.sleep(2)
    with pytest.raises(LifecycleError, match="asleep"):
        net(torch.ones(4))
    pool.wake()
    assert torch.isnan(net.big).all()


def test_five_percent_and_shared_segments_are_forgiven() -> None:
    backing = PinnedBacking(FakeModule, "cpu", lambda: "")
    assert backing.shortfall(9_500 * MIB, 10_000 * MIB) == ""
    assert backing.shortfall(9_499 * MIB, 10_000 * MIB)
    assert backing.shortfall(0, 22 * MIB) == ""
    assert backing.shortfall(0, 23 * MIB)


def test_no_room_for_the_copy_leaves_everything_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    module, net = FakeModule(), Net(1)
    pool = pool_of(module, net)

    def full(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError("host out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(pinned.torch, "empty", full)
        with pytest.raises(LifecycleError, match="cannot keep its copy in pinned host memory: host out.*\n.*ulimit -l"):
            pool.sleep(1)
    net(torch.ones(4))
    pool.sleep(1)


def test_a_failing_device_is_reported_with_the_state() -> None:
    module, net = FakeModule(), Net(1)
    kept = raw(net)
    pool = pool_of(module, net)

    class Failing(FakeModule):
        def empty_cache(self) -> None:
            if not self.memory_allocated():
                raise RuntimeError("device error")

    failing = Failing(owners=module.owners)
    pool._backing._module = lambda: failing  # type: ignore[attr-defined]
    with pytest.raises(LifecycleError, match="cannot release weights: device error; everything is awake again"):
        pool.sleep(1)
    assert raw(net) == kept


def test_a_failed_wake_changes_nothing_and_can_be_repeated() -> None:
    module, net = FakeModule(), Net(64)
    kept = raw(net)
    pool = pool_of(module, net)
    pool.sleep(1)
    module.fail = "synchronize"
    with pytest.raises(LifecycleError, match="cannot wake weights: device error in synchronize\n.*call wake"):
        pool.wake()
    assert module.memory_allocated() == 0
    module.fail = ""
    pool.wake()
    assert raw(net) == kept


def test_undoing_that_fails_says_that_the_copy_is_there() -> None:
    module, net = FakeModule(stays=GIB), Net(64)
    kept = raw(net)
    pool = pool_of(module, net)

    class Failing(FakeModule):
        def synchronize(self) -> None:
            if self.others and self.memory_allocated():
                raise RuntimeError("device error")

        def ipc_collect(self) -> None:
            self.others = 1 if not self.memory_allocated() else 0

    failing = Failing(owners=module.owners, stays=GIB)
    pool._backing._module = lambda: failing  # type: ignore[attr-defined]
    with pytest.raises(LifecycleError, match="tags stay asleep, with their copy, as waking them failed too.*error"):
        pool.sleep(1)
    failing.others = 0
    pool.wake()
    assert raw(net) == kept


def test_settings_are_refused_before_anything_is_copied() -> None:
    def refuse() -> None:
        raise LifecycleError("setting X stands in the way", remedy="unset X")

    module = FakeModule()
    pool = SleepPool("actor", PinnedBacking(lambda: module, "cpu", lambda: "", refuse))
    pool.register("weights", Net(1))
    with pytest.raises(LifecycleError, match="setting X"):
        pool.sleep(1)
    assert not module.calls


def test_step_counters_of_an_optimizer_may_live_on_the_host() -> None:
    """On an accelerator AdamW keeps its step counters in host memory; a module's tensors must be on the device."""
    net = nn.Linear(4, 4, device="meta")
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        optimizer.state[parameter] = {"step": torch.ones(()), "exp_avg": torch.empty_like(parameter)}
    slots = storages.collect([("optimizer", optimizer)], "meta", set())["optimizer"]
    assert [slot.name for slot in slots] == ["state 0.exp_avg", "state 1.exp_avg"]
    host = nn.Linear(4, 4)
    with pytest.raises(LifecycleError, match="'weight' is on 'cpu', but this pool releases memory of 'meta'"):
        storages.collect([("weights", host)], "meta", set())


def test_stats_are_the_drivers_and_the_allocators() -> None:
    module = FakeModule(owners=[Net(3)], others=GIB, cached=5 * MIB)
    stats = manager(module).stats()
    assert stats.total == 80 * GIB
    assert stats.free == module.mem_get_info()[0]
    assert stats.used == module.memory_reserved() > 8 * MIB
    assert stats.peak >= stats.used


def test_trim_reports_what_the_driver_got_back() -> None:
    module = FakeModule(owners=[Net(1)], cached=7 * MIB)
    assert manager(module).trim() == 7 * MIB
    assert module.calls == ["synchronize", "ipc_collect", "empty_cache"]
    assert manager(module).trim() == 0


def test_the_manager_hands_out_pools() -> None:
    module, net = FakeModule(), Net(40)
    memory = manager(module)
    pool = memory.pool("actor")
    module.owners.append(net)
    pool.register("weights", net)
    assert pool.sleep().bytes == pool.wake().bytes > 40 * MIB
    with pytest.raises(DeviceError, match="no engine here"):
        memory.engine_pool()


def test_the_engine_pool_is_one() -> None:
    pools = iter(["first", "second"])
    memory = AcceleratorMemory(FakeModule, "cpu", lambda: next(pools), lambda: "")  # type: ignore[arg-type, return-value]
    assert memory.engine_pool() is memory.engine_pool()


def test_torch_has_what_is_asked_of_a_module() -> None:
    """Every function of `DeviceModule` exists in torch's own module of GPUs and can be called as declared."""
    names = [name for name, member in vars(DeviceModule).items() if inspect.isfunction(member) and name[0] != "_"]
    assert len(names) > 12
    for name in names:
        declared = list(inspect.signature(getattr(DeviceModule, name)).parameters.values())[1:]
        real = inspect.signature(getattr(torch.cuda, name))
        real.bind(*range(len(declared)))
        real.bind(**{parameter.name: 0 for parameter in declared})
