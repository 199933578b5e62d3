"""Modules and optimizers whose memory goes away and comes back; the same on every device, over a device's backing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from omni_devices.common import guards, storages
from omni_devices.common.storages import Owner, Slot
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.lifecycle import Ack

MIN_FREED = 0.95
"""Least share of the expected bytes that sleeping must free, as measured."""


class Copy(Protocol):
    """The contents of some slots, kept where they take none of the device's memory."""

    def restore(self, slots: Sequence[Slot]) -> None:
        """Fill the same slots in the same order; they have memory again, and its contents when this returns."""
        ...

    def close(self) -> None:
        """Give the copy's room back."""
        ...


class Backing(Protocol):
    """What a pool needs of its device.

    Args:
        device_type: of every tensor in the pool.
        room: where copies are kept, for messages ('in pinned host memory'), and what to do where it is too small.
    """

    device_type: str

    @property
    def room(self) -> tuple[str, str]: ...

    def check(self) -> None:
        """Raise `LifecycleError` for a setting under which sleeping cannot free memory."""
        ...

    def trim(self) -> None:
        """Wait for what is queued, and give cached memory that nobody uses back to the driver or system."""
        ...

    def held(self) -> int:
        """Bytes in use, as the driver or the operating system counts them."""
        ...

    def expected(self, slots: Sequence[Slot]) -> int:
        """Bytes that releasing the slots must free."""
        ...

    def freed(self, before: int, expected: int) -> int:
        """Bytes that :meth:`held` has fallen since it was `before`; waits where the driver reports late."""
        ...

    def shortfall(self, freed: int, expected: int) -> str:
        """'' where enough was freed, else the likely reason and what to do about it."""
        ...

    def copy(self, slots: Sequence[Slot]) -> Copy:
        """Keep the contents of the slots; complete when this returns.

        Raises:
            LifecycleError: this host cannot keep copies.
            OSError: no room, or a failing disk; nothing is left behind.
            RuntimeError: no room, or a failing device; nothing is left behind.
        """
        ...


@dataclass
class _Sleeping:
    """What is needed to wake one tag: `kept` come back from the copy, `lost` come back poisoned."""

    kept: list[Slot]
    lost: list[Slot]
    copy: Copy | None
    handles: list[guards.Handle]

    @property
    def slots(self) -> list[Slot]:
        return [*self.kept, *self.lost]

    def fill(self) -> None:
        """Allocate every storage; the contents come from the copy, or are poison."""
        for slot in self.slots:
            storages.allocate(slot)
        if self.copy:
            self.copy.restore(self.kept)
        for slot in self.lost:
            storages.poison(slot)

    def close(self) -> None:
        guards.remove(self.handles)
        if self.copy:
            self.copy.close()


class SleepPool:
    """Implements the contract of the same name.

    Level 1 keeps a copy of everything and restores it bit for bit. Level 2 does so for module buffers only, as no
    weight update brings those back; parameters, gradients and optimizer state are discarded and come back as NaN, so
    that a missing update cannot pass for weights. A storage that several tags share belongs to the tag it was first
    registered under. While a tag sleeps, using its owners raises `LifecycleError`.

    Args:
        name: for messages.
        backing: the device's part.
    """

    def __init__(self, name: str, backing: Backing) -> None:
        self.name = name
        self._backing = backing
        self._owners: list[tuple[SleepTag, Owner]] = []
        self._asleep: dict[SleepTag, _Sleeping] = {}

    def register(self, tag: SleepTag, owner: Owner) -> None:
        """Add a module or an optimizer; its tensors are looked up when the tag goes to sleep.

        Raises:
            LifecycleError: the tag is asleep.
        """
        if tag in self._asleep:
            raise LifecycleError(f"pool '{self.name}': '{tag}' is asleep", remedy="wake it before adding to it")
        self._owners.append((tag, owner))

    def sleep(self, level: int = 1, tags: Sequence[SleepTag] | None = None) -> Ack:
        """Release the tags' memory (None: of all that are awake); returns the bytes freed, as measured.

        Raises:
            LifecycleError: an unknown level or tag, a tag that sleeps already, a setting of the device that stands in
                the way, no room for the copy, or memory that did not go away. After any of them nothing new is asleep,
                except that a level 2 whose memory did not go away cannot bring the contents back and stays asleep.
        """
        started = time.perf_counter()
        if level not in (1, 2):
            raise LifecycleError(f"pool '{self.name}': sleep level {level} does not exist", choices=["1", "2"])
        chosen = self._choose(tags, asleep=False)
        self._backing.check()
        found = self._collect(chosen)
        slots = [slot for tag_slots in found.values() for slot in tag_slots]
        storages.check_owned(slots)
        self._backing.trim()
        before, expected = self._backing.held(), self._backing.expected(slots)
        self._asleep |= self._prepare(found, level)
        for tag in chosen:
            self._asleep[tag].handles = self._guard(tag, level)
        try:
            for slot in slots:
                storages.release(slot)
            self._backing.trim()
            freed = self._backing.freed(before, expected)
        except RuntimeError as error:
            problem = f"cannot release {', '.join(chosen)}: {error}"
            raise LifecycleError(f"pool '{self.name}' {problem}; {self._undo(chosen, level)}") from error
        self._judge(chosen, level, freed, expected)
        size = sum(slot.nbytes for slot in slots)
        return Ack(
            operation="sleep",
            bytes=max(0, freed),
            seconds=time.perf_counter() - started,
            detail=f"pool '{self.name}', level {level}: {', '.join(chosen)}: {len(slots)} storages of {size} bytes, of "
            f"which {expected} were expected to be freed",
        )

    def wake(self, tags: Sequence[SleepTag] | None = None) -> Ack:
        """Bring memory back (None: of all that sleep); returns the bytes it takes, as measured.

        Raises:
            LifecycleError: an unknown tag, a tag that is awake, or memory or a copy that cannot be had; then nothing
                has been woken.
        """
        started = time.perf_counter()
        chosen = self._choose(tags, asleep=True)
        before = self._backing.held()
        entries = [self._asleep[tag] for tag in chosen]
        try:
            for entry in entries:
                entry.fill()
        except (OSError, RuntimeError) as error:
            for slot in (slot for entry in entries for slot in entry.slots):
                storages.release(slot)
            raise LifecycleError(
                f"pool '{self.name}' cannot wake {', '.join(chosen)}: {error}",
                remedy="free memory and call wake() again; the copy is still there",
            ) from error
        for tag in chosen:
            self._asleep.pop(tag).close()
        return Ack(
            operation="wake",
            bytes=max(0, self._backing.held() - before),
            seconds=time.perf_counter() - started,
            detail=f"pool '{self.name}': {', '.join(chosen)}: {sum(len(entry.slots) for entry in entries)} storages, "
            f"{sum(len(entry.lost) for entry in entries)} of them without their contents",
        )

    def _choose(self, tags: Sequence[SleepTag] | None, *, asleep: bool) -> list[SleepTag]:
        """The tags to work on, all registered and all in the state asked for; at least one."""
        registered = list(dict.fromkeys(tag for tag, _ in self._owners))
        if tags is None:
            chosen = [tag for tag in registered if (tag in self._asleep) is asleep]
        else:
            chosen = list(dict.fromkeys(tags))
        for tag in chosen:
            if tag not in registered:
                raise LifecycleError(f"pool '{self.name}': nothing is registered as '{tag}'", choices=registered)
            if (tag in self._asleep) is not asleep:
                raise LifecycleError(f"pool '{self.name}': '{tag}' is {'awake' if asleep else 'asleep'} already")
        if not chosen:
            state = "asleep" if asleep else "awake"
            raise LifecycleError(f"pool '{self.name}': nothing is {state}", choices=registered)
        return chosen

    def _collect(self, chosen: Sequence[SleepTag]) -> dict[SleepTag, list[Slot]]:
        """Storages of the chosen tags. All tags are searched, in order, to settle who owns what is shared."""
        asleep = {slot.storage._cdata for entry in self._asleep.values() for slot in entry.slots}
        found = storages.collect(self._owners, self._backing.device_type, asleep)
        return {tag: found[tag] for tag in chosen}

    def _prepare(self, found: dict[SleepTag, list[Slot]], level: int) -> dict[SleepTag, _Sleeping]:
        """Make the copies; on failure close those that were made."""
        prepared: dict[SleepTag, _Sleeping] = {}
        try:
            for tag, slots in found.items():
                kept = [slot for slot in slots if level == 1 or slot.is_buffer]
                lost = [slot for slot in slots if not (level == 1 or slot.is_buffer)]
                prepared[tag] = _Sleeping(kept, lost, self._backing.copy(kept) if kept else None, [])
        except (OSError, RuntimeError, LifecycleError) as error:
            for entry in prepared.values():
                entry.close()
            if isinstance(error, LifecycleError):
                raise
            where, remedy = self._backing.room
            raise LifecycleError(
                f"pool '{self.name}' cannot keep its copy {where}: {error}; nothing was put to sleep", remedy=remedy
            ) from error
        return prepared

    def _guard(self, tag: SleepTag, level: int) -> list[guards.Handle]:
        reason = f"'{tag}' of pool '{self.name}' is asleep (level {level})"
        handles: list[guards.Handle] = []
        for other, owner in self._owners:
            if isinstance(owner, torch.optim.Optimizer):
                handles += guards.guard_step(owner, reason)
                handles += guards.guard_state(owner, reason) if other == tag else []
            elif other == tag:
                handles += guards.guard_module(owner, reason)
        return handles

    def _judge(self, chosen: list[SleepTag], level: int, freed: int, expected: int) -> None:
        remedy = self._backing.shortfall(freed, expected)
        if not remedy:
            return
        raise LifecycleError(
            f"pool '{self.name}': putting {', '.join(chosen)} to sleep freed {freed} of {expected} bytes; "
            f"{self._undo(chosen, level)}",
            remedy=remedy,
        )

    def _undo(self, chosen: list[SleepTag], level: int) -> str:
        """Wake what was just put to sleep, where that brings the contents back; says what the state is now."""
        if level == 2:
            return "the contents are lost and the tags stay asleep"
        try:
            self.wake(chosen)
        except LifecycleError as error:
            return f"the tags stay asleep, with their copy, as waking them failed too: {error.problem}"
        return "everything is awake again"
