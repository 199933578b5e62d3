"""A rollout engine's allocator as an engine pool: tagged memory that is unmapped and mapped again in place.

vLLM's allocator and vllm-ascend's have one shape: memory allocated inside `use_memory_pool(tag=...)` belongs to the
tag; `sleep` unmaps everything and keeps host copies of the tags it is given; `wake_up` maps tags again. Neither says
how much was freed, and the second maps a tag twice when it is asked twice. This pool keeps the state and measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from omni_devices.common.driver_wait import freed_since
from omni_devices.common.torch_memory import DeviceModule, release_cached, used_bytes
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.lifecycle import Ack

ENGINE_TAGS: tuple[SleepTag, ...] = ("weights", "kv_cache")
"""What engines allocate when they are started with sleep mode, besides what :meth:`TaggedAllocatorPool.use` tags."""
OFFLOADED: tuple[SleepTag, ...] = ("weights",)
"""Tags of which level 1 keeps a host copy; everything else can be made again."""
MIN_FREED = 0.95
DRIVER_WAIT_S = 5.0


class TaggedAllocator(Protocol):
    """An allocator of vLLM's shape."""

    def use_memory_pool(self, tag: str | None = None) -> AbstractContextManager[Any]: ...

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None: ...

    def wake_up(self, tags: list[str] | None = None) -> None: ...

    def get_current_usage(self) -> int:
        """Bytes of all allocations, mapped or not."""
        ...


class TaggedAllocatorPool:
    """Implements :class:`omni_portable.contracts.device.EnginePool`; one for each process, as the allocator is.

    Args:
        allocator: the process's allocator; asked for after `refuse` has agreed.
        module: torch's module of the accelerator.
        refuse: raises `LifecycleError` for settings under which the allocator cannot work.
        kept: bytes of allocations that stay mapped while the allocator sleeps.
        wait_s: how long the driver may take to report freed memory.
    """

    def __init__(
        self,
        allocator: Callable[[], TaggedAllocator],
        module: Callable[[], DeviceModule],
        refuse: Callable[[], None],
        *,
        kept: Callable[[], int] = lambda: 0,
        wait_s: float = DRIVER_WAIT_S,
    ) -> None:
        self._allocator = allocator
        self._module = module
        self._refuse = refuse
        self._kept = kept
        self._wait_s = wait_s
        self._used: dict[SleepTag, None] = {}
        self._asleep: list[SleepTag] = []
        self._whole = True  # nothing was woken since everything went to sleep
        self._broken = ""

    def check(self) -> None:
        """Refuse, before anything is allocated, settings under which sleeping cannot work.

        Raises:
            LifecycleError: names the setting and what to change it to.
        """
        self._refuse()

    @contextmanager
    def use(self, tag: SleepTag) -> Iterator[None]:
        """What is allocated inside belongs to `tag`.

        Raises:
            LifecycleError: a setting that stands in the way, or the tag is asleep.
        """
        self._require_whole()
        self.check()
        if tag in self._asleep:
            raise LifecycleError(f"engine pool: '{tag}' is asleep", remedy="wake it before allocating in it")
        self._used[tag] = None
        with self._allocator().use_memory_pool(tag=tag):
            yield

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] | None = None) -> Ack:
        """Unmap everything: level 1 keeps a host copy of 'weights', level 2 keeps nothing, module buffers neither.

        Args:
            tags: None, or all tags in use: such an allocator sleeps as a whole.

        Returns:
            With the bytes that the driver reports to be free in addition.

        Raises:
            LifecycleError: an unknown level, tags that leave something awake, something that sleeps already, nothing
                allocated, or much less freed than was mapped. After the last, level 1 has been woken again (contents
                other than the weights are lost) and level 2 stays asleep.
        """
        started = time.perf_counter()
        self._require_whole()
        chosen = self._to_sleep(level, tags)
        self.check()
        allocator, module = self._allocator(), self._module()
        expected = allocator.get_current_usage() - self._kept()
        if expected <= 0:
            raise LifecycleError(
                "engine pool: the engine has allocated nothing that can sleep",
                remedy="start the engine with its sleep mode enabled (enable_sleep_mode=True)",
            )
        release_cached(module)
        before = used_bytes(module)
        with self._unless_it_fails("put to sleep", chosen):
            allocator.sleep(offload_tags=OFFLOADED if level == 1 else ())
            self._asleep, self._whole = chosen, True
            freed = freed_since(lambda: used_bytes(module), before, MIN_FREED * expected, self._wait_s)
        if freed < MIN_FREED * expected:
            raise self._too_little(level, chosen, freed, expected)
        kept = ", ".join(OFFLOADED) if level == 1 else "nothing"
        return Ack(
            operation="sleep",
            bytes=freed,
            seconds=time.perf_counter() - started,
            detail=f"engine pool, level {level}: {expected} bytes were mapped; kept on the host: {kept}",
        )

    def wake(self, tags: Sequence[SleepTag] | None = None) -> Ack:
        """Map tags again (None: all that sleep). What no host copy was kept of has undefined contents.

        Returns:
            With the bytes that the driver reports to be taken.

        Raises:
            LifecycleError: a tag that is not asleep, or memory that cannot be had; after the latter the engine has to
                be started again, as its memory is mapped in part.
        """
        started = time.perf_counter()
        self._require_whole()
        chosen = self._to_wake(tags)
        module = self._module()
        module.synchronize()
        before = used_bytes(module)
        everything = self._whole and len(chosen) == len(self._asleep)
        with self._unless_it_fails("wake", chosen):
            self._allocator().wake_up(tags=None if everything else list(chosen))
            module.synchronize()
        self._asleep = [tag for tag in self._asleep if tag not in chosen]
        self._whole = False
        return Ack(
            operation="wake",
            bytes=max(0, used_bytes(module) - before),
            seconds=time.perf_counter() - started,
            detail=f"engine pool: {', '.join(chosen)}; still asleep: {', '.join(self._asleep) or 'nothing'}",
        )

    def _to_sleep(self, level: int, tags: Sequence[SleepTag] | None) -> list[SleepTag]:
        if level not in (1, 2):
            raise LifecycleError(f"engine pool: sleep level {level} does not exist", choices=["1", "2"])
        if self._asleep:
            raise LifecycleError(
                f"engine pool: {', '.join(self._asleep)} sleeps already",
                remedy="wake it first: the allocator sleeps as a whole and from the waking state only",
            )
        known = list(self._used) or list(ENGINE_TAGS)
        chosen = known if tags is None else list(dict.fromkeys(tags))
        if missing := [tag for tag in known if tag not in chosen]:
            raise LifecycleError(
                f"engine pool: asked to put {', '.join(chosen) or 'nothing'} to sleep and leave {', '.join(missing)} "
                "awake, but the allocator sleeps as a whole",
                remedy="name all tags, or none",
            )
        return chosen

    def _to_wake(self, tags: Sequence[SleepTag] | None) -> list[SleepTag]:
        chosen = list(self._asleep) if tags is None else list(dict.fromkeys(tags))
        if not chosen:
            raise LifecycleError("engine pool: nothing is asleep")
        for tag in chosen:
            if tag not in self._asleep:
                raise LifecycleError(f"engine pool: '{tag}' is not asleep", choices=self._asleep)
        return chosen

    def _too_little(self, level: int, chosen: list[SleepTag], freed: int, expected: int) -> LifecycleError:
        outcome = "the contents are lost and everything stays asleep"
        if level == 1:
            self.wake()
            outcome = "everything is awake again, without contents other than the weights"
        return LifecycleError(
            f"engine pool: putting {', '.join(chosen)} to sleep freed {freed} of {expected} bytes within "
            f"{self._wait_s:g} s, as the driver reports it; {outcome}",
            remedy="find out which process on this device allocated meanwhile, or whether the engine's allocator "
            "supports this driver",
        )

    def _require_whole(self) -> None:
        if self._broken:
            raise LifecycleError(f"engine pool: {self._broken}", remedy="start the engine's process again")

    @contextmanager
    def _unless_it_fails(self, what: str, chosen: Sequence[SleepTag]) -> Iterator[None]:
        """A failing allocator leaves memory mapped in part, which nobody can know: nothing may follow."""
        try:
            yield
        except (RuntimeError, AssertionError, MemoryError) as error:
            self._broken = f"the allocator failed to {what} {', '.join(chosen)}: {error}"
            raise LifecycleError(
                f"engine pool: {self._broken}", remedy="start the engine's process again, with more memory left free"
            ) from error
