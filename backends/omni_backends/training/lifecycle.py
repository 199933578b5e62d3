"""Sleep and wake of a train engine: what sleeps is known, and work that needs it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.lifecycle import Ack

TAGS: tuple[SleepTag, ...] = ("weights", "optimizer")
"""What a train engine can put to sleep; copies of the weights (average, old, reference) sleep with the optimizer."""


class Sleeper(Protocol):
    """What sleeps: a device's pool, or the ranks that each have one."""

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] | None = None) -> Ack: ...

    def wake(self, tags: Sequence[SleepTag] | None = None) -> Ack: ...


class SleepGuard:
    """Remembers which tags sleep.

    Args:
        engine: name for messages.
        pool: holds the engine's modules and optimizer.
    """

    def __init__(self, engine: str, pool: Sleeper) -> None:
        self._engine, self._pool = engine, pool
        self._asleep: set[SleepTag] = set()

    def sleep(self, level: int, tags: Sequence[SleepTag]) -> Ack:
        """Release device memory, keeping an exact copy off the device (level 1).

        Raises:
            LifecycleError: something of `tags` sleeps already, or level 2, which would discard the only copy.
        """
        if level != 1:
            raise LifecycleError(
                f"train engine '{self._engine}' was asked to sleep at level {level}, which discards weights or "
                "optimizer state that exist nowhere else",
                choices=("1",),
            )
        self._check(tags, "sleep")
        ack = self._pool.sleep(level, tags)
        self._asleep.update(tags)
        return ack

    def wake(self, tags: Sequence[SleepTag]) -> Ack:
        """Restore what sleeps, bit for bit.

        Raises:
            LifecycleError: something of `tags` is awake.
        """
        self._check(tags, "wake")
        ack = self._pool.wake(tags)
        self._asleep.difference_update(tags)
        return ack

    def require_awake(self, what: str, *tags: SleepTag) -> None:
        """Raise LifecycleError if one of the tags sleeps."""
        sleeping = [tag for tag in tags if tag in self._asleep]
        if sleeping:
            raise LifecycleError(
                f"train engine '{self._engine}' was asked to {what} while its {' and '.join(sleeping)} slept",
                remedy="call wake() first",
            )

    def _check(self, tags: Sequence[SleepTag], operation: str) -> None:
        for tag in tags:
            if tag not in TAGS:
                raise LifecycleError(
                    f"train engine '{self._engine}' has nothing tagged '{tag}' to {operation}", choices=TAGS
                )
            if (tag in self._asleep) == (operation == "sleep"):
                raise LifecycleError(f"train engine '{self._engine}' cannot {operation} '{tag}': it already did")
