"""The sum of all roles on one device, phase by phase, against what the device has; and what would make it fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from omni_portable.config.modes import ACTOR_TAGS, SYNC
from omni_portable.config.schema import RunConfig
from omni_portable.planning import roles
from omni_portable.planning.plan import PHASES, Change, Memory, MemoryStatus, Reason, Role
from omni_portable.planning.setting import Setting
from omni_portable.planning.support import can_sleep
from omni_portable.planning.target import Target

TIGHT = 0.9
"""Share of the usable memory from which a plan is called tight: fragmentation is not estimated."""

GIB = 2**30


@dataclass(frozen=True)
class Lever:
    """A change of the recipe that may lower the peak: its overrides, and what it does to a setting.

    Of the levers of one `ladder` no further one is tried once one fits.
    """

    overrides: tuple[str, ...]
    pull: Callable[[Setting], Setting]
    ladder: str = ""


def plan_memory(setting: Setting, target: Target, capacity: int | None) -> tuple[Memory, list[Reason], list[Reason]]:
    """The estimate, why it cannot run, and what to watch.

    Args:
        capacity: bytes of one device; None where it is not known.
    """
    everyone = _roles(setting, target)
    groups = _groups(setting, target)
    phases = _fullest(groups)
    peak_phase = max(PHASES, key=lambda phase: phases[phase])
    peak, reserved = phases[peak_phase], target.profile.reserved_bytes
    usable = None if capacity is None else max(0, capacity - reserved)
    status = _status(peak, usable)
    changes = _changes(setting, target, usable) if status == "exceeds" and usable is not None else ()
    memory = Memory(
        status=status,
        capacity_bytes=capacity,
        reserved_bytes=reserved,
        peak_bytes=peak,
        peak_phase=peak_phase,
        phases=phases,
        roles=everyone,
        host=roles.host(setting),
        changes=changes,
        by_device=groups if setting.apart else {},
    )
    if usable is None:
        return memory, [], [_unknown_capacity(target, peak + reserved)]
    if status == "exceeds":
        return memory, [_exceeds(memory, target, usable)], []
    return memory, [], [_tight(peak, usable)] if status == "tight" else []


def _roles(setting: Setting, target: Target) -> tuple[Role, ...]:
    """Actor and rollout engine; where the host is the device, what waits in its memory too."""
    both = (roles.actor(setting), roles.rollout(setting))
    return (*both, roles.buffer(setting)) if target.profile.torch_device_type == "cpu" else both


def _phases(everyone: Sequence[Role]) -> dict[str, int]:
    return {phase: sum(role.total(phase) for role in everyone) for phase in PHASES}


def _groups(setting: Setting, target: Target) -> dict[str, dict[str, int]]:
    """Kind of device -> phase -> bytes on one: of all roles where they share devices, of each where they do not."""
    everyone = _roles(setting, target)
    if not setting.apart:
        return {"every": _phases(everyone)}
    return {role.name: _phases([role]) for role in everyone}


def _fullest(groups: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Phase -> bytes on the kind of device that holds most in it."""
    return {phase: max(sums[phase] for sums in groups.values()) for phase in PHASES}


def _peak(setting: Setting, target: Target) -> int:
    return max(_fullest(_groups(setting, target)).values())


def _status(peak: int, usable: int | None) -> MemoryStatus:
    if usable is None:
        return "capacity_unknown"
    if peak > usable:
        return "exceeds"
    return "tight" if peak > TIGHT * usable else "fits"


def _changes(setting: Setting, target: Target, usable: int) -> tuple[Change, ...]:
    """Each lever by itself, then as few of them as together make it fit, in the order in which they cost least."""
    now = _peak(setting, target)
    found: list[Change] = []
    useful: list[Lever] = []
    done: set[str] = set()
    for lever in _levers(setting, target):
        peak = now if lever.ladder in done else _peak(lever.pull(setting), target)
        if peak < now:
            useful.append(lever)
            found.append(Change(lever.overrides, peak, peak <= usable))
            done |= {lever.ladder} - {""} if peak <= usable else set()
    if useful and not any(change.fits for change in found):
        pulled = setting
        overrides: dict[str, str] = {}  # a later change of a key replaces an earlier one
        for lever in useful:
            if _peak(lever.pull(pulled), target) < _peak(pulled, target):
                pulled = lever.pull(pulled)
                overrides |= {override.partition("=")[0]: override for override in lever.overrides}
            if _peak(pulled, target) <= usable:
                break
        peak = _peak(pulled, target)
        found.append(Change(tuple(overrides.values()), peak, peak <= usable))
    return tuple(found)


def _levers(setting: Setting, target: Target) -> list[Lever]:
    """What a user may change, from what costs nothing in numbers to what changes the training."""
    levers = []
    if setting.config.rollout.sleep_level == 0 and can_sleep(setting.config, 1):
        levers.append(_lever(("rollout.sleep_level=1",), lambda config: setattr(config.rollout, "sleep_level", 1)))
    trainer = setting.config.trainer
    if (
        trainer.mode == SYNC
        and not (setting.apart or trainer.actor_sleeps)
        and target.profile.torch_device_type != "cpu"
    ):
        overrides = (f"trainer.actor_sleeps=[{','.join(ACTOR_TAGS)}]",)
        levers.append(_lever(overrides, lambda config: setattr(config.trainer, "actor_sleeps", [*ACTOR_TAGS])))
    if not setting.config.actor.gradient_checkpointing:
        overrides = ("actor.gradient_checkpointing=true",)
        levers.append(_lever(overrides, lambda config: setattr(config.actor, "gradient_checkpointing", True)))
    micro = setting.batches.micro_batch_size
    for size in (size for size in (16, 8, 4, 2, 1) if size < micro):
        levers.append(_smaller_batches(size))
    if setting.itemsize > 2 and "bfloat16" in target.profile.capabilities.dtypes:
        levers.append(Lever(("device.dtype=bfloat16",), lambda setting: replace(setting, dtype="bfloat16")))
    if not setting.lora_rank:
        levers.append(_lever(("model.lora.rank=32",), lambda config: setattr(config.model.lora, "rank", 32)))
    return levers


def _smaller_batches(size: int) -> Lever:
    """Packs and micro-batches stay equal, so that on-policy ratios still start at exactly 1."""

    def change(config: RunConfig) -> None:
        config.rollout.max_num_seqs = size
        config.actor.micro_batch_size = 0

    return _lever((f"rollout.max_num_seqs={size}", "actor.micro_batch_size=0"), change, ladder="batch")


def _lever(overrides: tuple[str, ...], change: Callable[[RunConfig], None], ladder: str = "") -> Lever:
    def pull(setting: Setting) -> Setting:
        config = copy.deepcopy(setting.config)
        change(config)
        return replace(setting, config=config)

    return Lever(overrides, pull, ladder)


def _exceeds(memory: Memory, target: Target, usable: int) -> Reason:
    fitting = [change for change in memory.changes if change.fits]
    if fitting:
        shown = " ".join(fitting[0].overrides)
        remedy = f"add {shown} (peak {gib(fitting[0].peak_bytes)})"
    else:
        remedy = (
            f"use a device with {gib((memory.peak_bytes or 0) + memory.reserved_bytes)} or more, or a smaller model"
        )
    return Reason(
        "memory",
        f"the {memory.peak_phase.replace('_', ' ')} phase needs {gib(memory.peak_bytes or 0)} on one device, "
        f"'{target.where}' has {gib(usable)} ({gib(memory.capacity_bytes or 0)} less {gib(memory.reserved_bytes)} for "
        "driver and runtime)",
        remedy,
        tuple(" ".join(change.overrides) for change in fitting),
    )


def _tight(peak: int, usable: int) -> Reason:
    return Reason(
        "memory",
        f"the estimated peak takes {peak / usable:.0%} of the usable memory, and fragmentation is not estimated",
        "leave more room, for example with rollout.sleep_level=1 or smaller micro-batches",
    )


def _unknown_capacity(target: Target, needed: int) -> Reason:
    return Reason(
        "memory",
        f"how much memory one '{target.where}' has is known only on the machine itself; {gib(needed)} are needed",
        "say it with --memory-gib",
    )


def gib(size: int) -> str:
    """Bytes for people, in binary units."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"
