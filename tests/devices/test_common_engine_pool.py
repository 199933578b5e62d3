"""An engine's allocator as a pool: levels, tags, measured bytes, what the driver reports, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from accelerator_fakes import MIB, FakeAllocator, FakeModule

from omni_devices.common.engine_pool import TaggedAllocatorPool
from omni_portable.contracts.errors import LifecycleError

WEIGHTS, CACHE = 96 * MIB, 160 * MIB


def agrees() -> None:
    """A device without objections."""


class Engine:
    """An engine that has loaded its weights and made its cache."""

    def __init__(self, refuse: Callable[[], None] = agrees, kept: int = 0, wait_s: float = 0.0) -> None:
        self.module = FakeModule()
        self.allocator = FakeAllocator(self.module)
        self.pool = TaggedAllocatorPool(
            lambda: self.allocator, lambda: self.module, refuse, kept=lambda: kept, wait_s=wait_s
        )
        with self.pool.use("weights"):
            self.allocator.allocate(WEIGHTS)
        with self.pool.use("kv_cache"):
            self.allocator.allocate(CACHE)

    def mapped(self) -> set[str]:
        return {allocation.tag for allocation in self.allocator.allocations if allocation.mapped}

    def offloaded(self) -> set[str]:
        return {allocation.tag for allocation in self.allocator.allocations if allocation.offloaded}


@pytest.mark.parametrize(("level", "offloaded"), [(1, {"weights"}), (2, set())])
def test_levels(level: int, offloaded: set[str]) -> None:
    engine = Engine()
    down = engine.pool.sleep(level)
    assert down.bytes == WEIGHTS + CACHE
    assert (engine.mapped(), engine.offloaded()) == (set(), offloaded)
    assert f"kept on the host: {'weights' if level == 1 else 'nothing'}" in down.detail
    up = engine.pool.wake()
    assert up.bytes == WEIGHTS + CACHE
    assert engine.mapped() == {"weights", "kv_cache"}


def test_tags_wake_one_by_one_and_never_twice() -> None:
    engine = Engine()
    engine.pool.sleep(1)
    ack = engine.pool.wake(["weights"])
    assert ack.bytes == WEIGHTS
    assert "still asleep: kv_cache" in ack.detail
    assert engine.mapped() == {"weights"}
    with pytest.raises(LifecycleError, match="'weights' is not asleep\n.*kv_cache"):
        engine.pool.wake(["weights"])
    assert engine.pool.wake().bytes == CACHE  # what is left
    assert engine.mapped() == {"weights", "kv_cache"}
    with pytest.raises(LifecycleError, match="nothing is asleep"):
        engine.pool.wake()
    engine.pool.sleep(2)


def test_memory_without_a_tag_wakes_with_everything() -> None:
    engine = Engine()
    with engine.allocator.use_memory_pool():
        engine.allocator.allocate(MIB)
    engine.pool.sleep(1)
    engine.pool.wake()
    assert engine.mapped() == {"weights", "kv_cache", "default"}


def test_an_engine_that_allocates_by_itself_sleeps_too() -> None:
    module = FakeModule()
    allocator = FakeAllocator(module)
    pool = TaggedAllocatorPool(lambda: allocator, lambda: module, agrees)
    for tag in ("weights", "kv_cache"):
        with allocator.use_memory_pool(tag=tag):
            allocator.allocate(MIB)
    assert pool.sleep(1, ["weights", "kv_cache"]).bytes == 2 * MIB
    assert pool.wake(["kv_cache"]).bytes == MIB


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda pool: pool.sleep(3), "level 3 does not exist"),
        (lambda pool: pool.sleep(1, ["weights"]), "leave kv_cache awake, but the allocator sleeps as a whole"),
        (lambda pool: pool.wake(["weights"]), "'weights' is not asleep"),
    ],
)
def test_illegal_calls(act: Callable[[TaggedAllocatorPool], object], message: str) -> None:
    engine = Engine()
    with pytest.raises(LifecycleError, match=message):
        act(engine.pool)
    assert engine.mapped() == {"weights", "kv_cache"}


def test_what_sleeps_in_part_does_not_sleep_again() -> None:
    engine = Engine()
    engine.pool.sleep(1)
    for _ in range(2):
        with pytest.raises(LifecycleError, match="sleeps already\n.*wake it first"):
            engine.pool.sleep(1)
        if engine.mapped():
            break
        engine.pool.wake(["weights"])
    with pytest.raises(LifecycleError, match="'kv_cache' is asleep\n.*before allocating"):
        with engine.pool.use("kv_cache"):
            pass


def test_an_engine_without_sleep_mode_is_told() -> None:
    module = FakeModule()
    allocator = FakeAllocator(module)
    with pytest.raises(LifecycleError, match="allocated nothing that can sleep\n.*enable_sleep_mode=True"):
        TaggedAllocatorPool(lambda: allocator, lambda: module, agrees).sleep(1)


def test_settings_are_refused_before_the_allocator_is_asked_for() -> None:
    def refuse() -> None:
        raise LifecycleError("expandable segments are on", remedy="turn them off")

    def never() -> FakeAllocator:
        raise AssertionError("asked for the allocator")

    pool = TaggedAllocatorPool(never, FakeModule, refuse)
    with pytest.raises(LifecycleError, match="expandable segments"):
        pool.check()
    with pytest.raises(LifecycleError, match="expandable segments"):
        pool.sleep(1)
    with pytest.raises(LifecycleError, match="expandable segments"), pool.use("weights"):
        pass


def test_too_little_freed_is_an_error_and_undone() -> None:
    engine = Engine()
    engine.allocator.keep_mapped = 16 * MIB  # of 256: more than five percent
    with pytest.raises(
        LifecycleError, match=f"freed {240 * MIB} of {256 * MIB} bytes within 0 s.*awake again"
    ) as error:
        engine.pool.sleep(1)
    assert "without contents other than the weights" in str(error.value)
    assert engine.mapped() == {"weights", "kv_cache"}
    engine.allocator.keep_mapped = 12 * MIB
    assert engine.pool.sleep(1).bytes == 244 * MIB


def test_too_little_freed_at_level_2_stays_asleep() -> None:
    engine = Engine()
    engine.allocator.keep_mapped = 100 * MIB
    with pytest.raises(LifecycleError, match="the contents are lost and everything stays asleep"):
        engine.pool.sleep(2)
    assert engine.mapped() == set()
    engine.pool.wake()
    assert engine.mapped() == {"weights", "kv_cache"}


def test_what_stays_mapped_by_design_is_not_missed() -> None:
    engine = Engine(kept=100 * MIB)
    engine.allocator.keep_mapped = 100 * MIB
    assert engine.pool.sleep(1).bytes == 156 * MIB


def test_a_driver_that_reports_late_is_waited_for() -> None:
    engine = Engine(wait_s=30.0)
    engine.module.late = 4
    assert engine.pool.sleep(1).bytes == WEIGHTS + CACHE
    assert engine.module.late == 0


@pytest.mark.parametrize("when", ["sleep", "wake"])
@pytest.mark.parametrize("error", [RuntimeError, AssertionError, MemoryError])
def test_an_allocator_that_fails_ends_the_engine(when: str, error: type[Exception]) -> None:
    engine = Engine()
    if when == "wake":
        engine.pool.sleep(1)
    calls = iter([None, error("out of memory")])

    def second() -> None:
        if failure := next(calls, None):
            raise failure

    engine.allocator.fail = second
    act = engine.pool.sleep if when == "sleep" else engine.pool.wake
    with pytest.raises(
        LifecycleError, match="allocator failed to .*: out of memory\n.*start the engine's process again"
    ):
        act()
    for call in (engine.pool.sleep, engine.pool.wake, lambda: engine.pool.use("weights").__enter__()):
        with pytest.raises(LifecycleError, match="out of memory\n.*start the engine's process again"):
            call()
