"""Memory that is reported as freed is gone, and what comes back is what went, as the driver or the system measures."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.measures.sleeping import Sleeper, touched
from omni_portable.contracts.errors import DeviceError, LifecycleError
from omni_portable.models.weights import tensor_checksum

FREED = 0.95
"""Least share of the slept bytes that must be gone."""
PROBE_BYTES = 128 << 20
CYCLES = 3
LEFT_BEHIND = 0.05
"""Largest share of the slept bytes by which the process may have grown after `CYCLES` cycles."""


def _stats(context: Context) -> Outcome:
    memory = context.device.memory
    memory.trim()
    before = memory.stats()
    held = touched(context.device, PROBE_BYTES)
    during = memory.stats()
    del held
    rules = {
        "total is positive": before.total > 0,
        "free is at most total": 0 <= before.free <= before.total and 0 <= during.free <= during.total,
        "used is at most total": 0 <= before.used <= before.total and 0 <= during.used <= during.total,
        "peak is at least what was used": during.peak >= before.used,
        "total does not change": during.total == before.total,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    return Outcome(
        [
            Measurement("broken_rules", len(broken), "", "==", 0),
            Measurement("share_of_an_allocation_seen", (during.used - before.used) / PROBE_BYTES, "", ">=", FREED),
            Measurement("total", during.total, "bytes"),
            Measurement("used", during.used, "bytes"),
        ],
        f"broken: {', '.join(broken) or 'none'}",
    )


def _level_1(context: Context) -> Outcome:
    """Both tags sleep, weights wake first: as a colocated run does it."""
    sleeper = Sleeper.build(context.device, context.seed)
    parameters = list(sleeper.module.parameters())
    content, before = sleeper.checksums(), sleeper.used()
    slept = sleeper.pool.sleep(1)
    freed = before - sleeper.used()
    woken = [sleeper.pool.wake([tag]) for tag in ("weights", "optimizer")]
    restored = sleeper.checksums()
    different = [name for name, checksum in content.items() if restored.get(name) != checksum]
    kept = sum(now is then for now, then in zip(sleeper.module.parameters(), parameters, strict=True))
    sleeper.step()
    return Outcome(
        [
            Measurement("share_freed", freed / sleeper.slept_bytes, "", ">=", FREED),
            Measurement("tensors_that_differ", len(different), "", "==", 0),
            Measurement("parameters_of_new_identity", len(parameters) - kept, "", "==", 0),
            Measurement("slept", sleeper.slept_bytes, "bytes"),
            Measurement("freed_by_acknowledgement", slept.bytes, "bytes"),
            Measurement("sleep", slept.seconds, "s"),
            Measurement("wake", sum(ack.seconds for ack in woken), "s"),
        ],
        f"first different: {different[0]}" if different else "weights, buffers and optimizer moments are bit-equal",
    )


def _level_2(context: Context) -> Outcome:
    """Contents are discarded; what comes back must not look like weights."""
    sleeper = Sleeper.build(context.device, context.seed)
    before = sleeper.used()
    sleeper.pool.sleep(2)
    freed = before - sleeper.used()
    sleeper.pool.wake()
    usable = sum(int(torch.isfinite(parameter).sum()) for parameter in sleeper.module.parameters())
    return Outcome(
        [
            Measurement("share_freed", freed / sleeper.slept_bytes, "", ">=", FREED),
            Measurement("discarded_numbers_that_look_usable", usable, "", "==", 0),
            Measurement("slept", sleeper.slept_bytes, "bytes"),
        ],
        "level 2 keeps no copy: parameters come back as NaN until an update fills them",
    )


def _asleep(context: Context) -> Outcome:
    """Using what sleeps, and transitions that make no sense, must be errors and change nothing."""
    sleeper = Sleeper.build(context.device, context.seed)
    content = sleeper.checksums()
    pool = sleeper.pool
    accepted = _accepted({"wake while awake": pool.wake, "a level that does not exist": lambda: pool.sleep(9)})
    pool.sleep(1)
    uses: dict[str, Callable[[], object]] = {
        "forward": sleeper.step,
        "state_dict": sleeper.module.state_dict,
        "optimizer step": sleeper.optimizer.step,
        "sleep while asleep": lambda: pool.sleep(1),
        "wake of an unknown tag": lambda: pool.wake(["activations"]),
    }
    accepted += _accepted(uses)
    pool.wake()
    restored = sleeper.checksums()
    changed = sum(restored.get(name) != checksum for name, checksum in content.items())
    return Outcome(
        [
            Measurement("accepted", len(accepted), "", "==", 0),
            Measurement("tensors_that_differ", changed, "", "==", 0),
        ],
        f"accepted: {', '.join(accepted) or 'none'}",
    )


def _accepted(uses: dict[str, Callable[[], object]]) -> list[str]:
    """Names of the calls that did not raise."""
    accepted = []
    for name, use in uses.items():
        try:
            use()
        except LifecycleError:
            continue
        accepted.append(name)
    return accepted


def _cycles(context: Context) -> Outcome:
    """Nothing piles up: neither device memory nor the copies."""
    sleeper, process = Sleeper.build(context.device, context.seed), psutil.Process()
    content = sleeper.checksums()
    sleeper.pool.sleep(1)
    sleeper.pool.wake()
    before, host = sleeper.used(), process.memory_info().rss
    for _ in range(CYCLES):
        sleeper.pool.sleep(1)
        sleeper.pool.wake()
    grown, host_grown = sleeper.used() - before, process.memory_info().rss - host
    restored = sleeper.checksums()
    different = sum(restored.get(name) != checksum for name, checksum in content.items())
    return Outcome(
        [
            Measurement("share_left_behind", grown / sleeper.slept_bytes, "", "<=", LEFT_BEHIND),
            Measurement("host_share_left_behind", host_grown / sleeper.slept_bytes, "", "<=", LEFT_BEHIND),
            Measurement("tensors_that_differ", different, "", "==", 0),
        ],
        f"{CYCLES} further cycles of level 1, after a first one",
    )


def _engine_pool(context: Context) -> Outcome:
    """Level 1 of a rollout engine's allocator: weights keep their bits, the cache is discarded, both are gone."""
    device = context.device
    try:
        pool = device.memory.engine_pool()
    except DeviceError as error:
        raise NotRun(f"no engine pool: {error.problem}") from error
    pool.check()
    with pool.use("weights"):
        weights = touched(device, PROBE_BYTES)
    with pool.use("kv_cache"):
        cache = touched(device, PROBE_BYTES)
    content, before = tensor_checksum(weights), device.memory.stats().free
    slept = pool.sleep(1)
    freed = device.memory.stats().free - before
    woken = pool.wake()
    same = tensor_checksum(weights) == content
    size = weights.nbytes + cache.nbytes
    return Outcome(
        [
            Measurement("share_freed", freed / size, "", ">=", FREED),
            Measurement("weights_are_bit_equal", float(same), "", "==", 1),
            Measurement("freed_by_acknowledgement", slept.bytes, "bytes"),
            Measurement("sleep", slept.seconds, "s"),
            Measurement("wake", woken.seconds, "s"),
        ],
        slept.detail,
    )


_REMEDY = "look for allocator settings that keep freed memory (the error names them) and for other work of this process"
CHECKS = (
    Check(
        "memory.stats",
        "memory",
        "Memory figures are consistent, and an allocation shows in them.",
        "quick",
        _stats,
        "correct the device's statistics: memory estimates and sleep cannot be trusted here",
    ),
    Check(
        "memory.sleep-level-1",
        "memory",
        "Sleep of level 1 frees the memory, and waking restores every bit in place.",
        "quick",
        _level_1,
        f"{_REMEDY}; until then keep both roles resident (rollout.sleep_level=0)",
    ),
    Check(
        "memory.sleep-level-2",
        "memory",
        "Sleep of level 2 frees the memory, and what it discards cannot pass for weights.",
        "quick",
        _level_2,
        f"{_REMEDY}; until then use rollout.sleep_level 0 or 1",
    ),
    Check(
        "memory.asleep",
        "memory",
        "What sleeps cannot be used, and transitions that make no sense are refused.",
        "quick",
        _asleep,
        "mend the device's pool: it accepts what would crash or corrupt a run; until then do not use sleep",
    ),
    Check(
        "memory.cycles",
        "memory",
        "Sleeping and waking again and again leaves nothing behind.",
        "full",
        _cycles,
        f"{_REMEDY}; long colocated runs would run out of memory",
    ),
    Check(
        "memory.engine-pool",
        "memory",
        "The rollout engine's own allocator sleeps and wakes, measured at the driver.",
        "quick",
        _engine_pool,
        "change the setting that the error names, or the version of the package that brings the allocator",
    ),
)
