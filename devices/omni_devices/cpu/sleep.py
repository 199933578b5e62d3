"""Modules and optimizers whose memory goes away and comes back, measured at the operating system."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from omni_devices.common import guards, storages
from omni_devices.common.storages import Owner, Slot
from omni_devices.cpu import host, residency
from omni_devices.cpu.hostcopy import HostCopy
from omni_devices.cpu.memory import trim_heap
from omni_portable.contracts.device import SleepTag
from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.lifecycle import Ack

LARGE_STORAGE = 1 << 20
"""Storages from this size on are expected to be freed page by page; smaller ones share pages with what stays."""
ENFORCED_BYTES = 32 << 20
"""Below this sum of large storages the freed bytes are measured but not judged: other allocations of the process, such
as thread-local heaps, move the resident set by as much."""
MIN_FREED = 0.95
"""Least share of the large storages' resident bytes that must leave the resident set."""


@dataclass
class _Sleeping:
    """What is needed to wake one tag: `kept` come back from the copy, `lost` come back poisoned."""

    level: int
    kept: list[Slot]
    lost: list[Slot]
    copy: HostCopy | None
    handles: list[guards.Handle]

    @property
    def slots(self) -> list[Slot]:
        return [*self.kept, *self.lost]


class HostSleepPool:
    """A pool of the 'cpu' device.

    Level 1 copies everything to an unlinked temporary file and restores it bit for bit. Level 2 does so for module
    buffers only, as no weight update brings those back; parameters, gradients and optimizer state are discarded and
    come back as NaN, so that a missing update cannot pass for weights. A storage that several tags share belongs to the
    tag it was first registered under. While a tag sleeps, using its owners raises `LifecycleError`.

    Args:
        name: for messages.
        folder: where copies go; the system's temporary folder (TMPDIR) where None.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.name = name
        self._folder = folder
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
        """Release the tags' memory (None: of all that are awake); returns the measured drop of the resident set.

        Raises:
            LifecycleError: an unknown level or tag, a tag that sleeps already, no room for the copy, or memory that
                did not go away. After any of them nothing new is asleep, except that a level 2 whose memory did not
                go away cannot bring the contents back and stays asleep.
        """
        started = time.perf_counter()
        if level not in (1, 2):
            raise LifecycleError(f"pool '{self.name}': sleep level {level} does not exist", choices=["1", "2"])
        chosen = self._choose(tags, asleep=False)
        found = self._collect(chosen)
        slots = [slot for tag_slots in found.values() for slot in tag_slots]
        storages.check_owned(slots)
        before, expected = host.resident(), _present(slots)
        self._asleep |= self._prepare(found, level)
        for tag in chosen:
            self._asleep[tag].handles = self._guard(tag, level)
        for slot in slots:
            storages.release(slot)
        trim_heap()
        freed = before - host.resident()
        self._judge(chosen, level, freed, expected)
        size = sum(slot.nbytes for slot in slots)
        return Ack(
            operation="sleep",
            bytes=max(0, freed),
            seconds=time.perf_counter() - started,
            detail=f"pool '{self.name}', level {level}: {', '.join(chosen)}: {len(slots)} storages of {size} bytes, of "
            f"which {expected} were in memory in storages of 1 MiB or more",
        )

    def wake(self, tags: Sequence[SleepTag] | None = None) -> Ack:
        """Bring memory back (None: of all that sleep); returns the measured growth of the resident set.

        Raises:
            LifecycleError: an unknown tag, a tag that is awake, or memory or a copy that cannot be had; then nothing
                has been woken.
        """
        started = time.perf_counter()
        chosen = self._choose(tags, asleep=True)
        before = host.resident()
        entries = [self._asleep[tag] for tag in chosen]
        try:
            for entry in entries:
                _fill(entry)
        except (OSError, RuntimeError) as error:
            for slot in (slot for entry in entries for slot in entry.slots):
                storages.release(slot)
            raise LifecycleError(
                f"pool '{self.name}' cannot wake {', '.join(chosen)}: {error}",
                remedy="free memory and call wake() again; the copy is still there",
            ) from error
        for tag, entry in zip(chosen, entries, strict=True):
            guards.remove(entry.handles)
            if entry.copy:
                entry.copy.close()
            del self._asleep[tag]
        return Ack(
            operation="wake",
            bytes=max(0, host.resident() - before),
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
        found = storages.collect(self._owners, "cpu", asleep)
        return {tag: found[tag] for tag in chosen}

    def _prepare(self, found: dict[SleepTag, list[Slot]], level: int) -> dict[SleepTag, _Sleeping]:
        """Write the copies; on failure close those that were written."""
        prepared: dict[SleepTag, _Sleeping] = {}
        folder = self._folder or Path(tempfile.gettempdir())
        try:
            for tag, slots in found.items():
                kept = [slot for slot in slots if level == 1 or slot.is_buffer]
                lost = [slot for slot in slots if not (level == 1 or slot.is_buffer)]
                copy = HostCopy([slot.storage for slot in kept], folder) if kept else None
                prepared[tag] = _Sleeping(level, kept, lost, copy, [])
        except (OSError, LifecycleError) as error:
            for entry in prepared.values():
                if entry.copy:
                    entry.copy.close()
            if isinstance(error, LifecycleError):
                raise
            raise LifecycleError(
                f"pool '{self.name}' cannot keep its copy in {folder}: {error}; nothing was put to sleep",
                remedy="make room there, set TMPDIR to another folder on disk, or use sleep level 2",
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
        if expected < ENFORCED_BYTES or freed >= MIN_FREED * expected:
            return
        outcome = "the contents are lost and the tags stay asleep"
        if level == 1:
            self.wake(chosen)
            outcome = "everything is awake again"
        preload = os.environ.get("LD_PRELOAD", "")
        raise LifecycleError(
            f"pool '{self.name}': putting {', '.join(chosen)} to sleep freed {freed} of {expected} bytes; {outcome}",
            remedy=f"the preloaded allocator ({preload}) keeps freed memory: unset LD_PRELOAD"
            if preload
            else "look for other threads that allocate meanwhile, or an allocator that keeps freed memory",
        )


def _present(slots: Sequence[Slot]) -> int:
    """Bytes of the large storages that are in memory now."""
    return residency.present_bytes([slot.address_range for slot in slots if slot.nbytes >= LARGE_STORAGE])


def _fill(entry: _Sleeping) -> None:
    for slot in entry.slots:
        storages.allocate(slot)
    if entry.copy:
        entry.copy.restore([slot.storage for slot in entry.kept])
    for slot in entry.lost:
        storages.poison(slot)
