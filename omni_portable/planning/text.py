"""A plan in words."""

from __future__ import annotations

from collections.abc import Iterator

from omni_portable.planning.memory import gib
from omni_portable.planning.plan import AttentionPlan, Change, Item, Memory, Plan, Reason

_GAPS = {
    "sizes_unknown": "its memory was NOT estimated, so whether it fits is not known",
    "capacity_unknown": "how much memory is there is not known, so neither is whether it fits",
}
"""Status of the memory -> what the verdict leaves open."""


def plan_as_text(plan: Plan) -> str:
    """Verdict and reasons first, then every section."""
    lines = [f"{plan.recipe} on {plan.where}: {verdict(plan)}"]
    for reason in plan.reasons:
        lines += _reason("because", reason)
    for warning in plan.warnings:
        lines += _reason("warning", warning)
    lines += ["", f"devices      {plan.devices.used} of {plan.devices.asked}: {plan.devices.use}"]
    lines.append(f"dtype        {plan.precision.dtype} ({plan.precision.reason})")
    lines += [f"{'attention' if index == 0 else '':<13}{_attention(one)}" for index, one in enumerate(plan.attention)]
    channels = ", ".join(plan.collectives.weight_channels)
    lines.append(f"collectives  {plan.collectives.backend}; weights to other processes by {channels}")
    lines += _section("environment", [f"{name}={value}" for name, value in plan.environment.items()])
    lines += ["", *_memory(plan.memory)]
    lines += ["", *_stack(plan)]
    if plan.assumptions:
        lines += ["", "assumptions", *(f"  - {one}" for one in plan.assumptions)]
    lines += ["", f"about {plan.where}", *(f"  - {one}" for one in plan.notes)]
    return "\n".join(lines)


def verdict(plan: Plan) -> str:
    """The headline: whether it can run there, and what that answer leaves open."""
    if plan.verdict == "cannot_run":
        return "cannot run there"
    if plan.verdict == "runs":
        return "can run there"
    gaps = [_GAPS[plan.memory.status]] if plan.memory.status in _GAPS else []
    if any(warning.about == "attention" for warning in plan.warnings):
        gaps.append("which attention kernels it needs is not known")
    return f"nothing known forbids it, but {'; and '.join(gaps)}"


def _section(title: str, entries: list[str]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        yield f"{title if index == 0 else '':<13}{entry}"


def _reason(label: str, reason: Reason) -> Iterator[str]:
    yield f"  {label}: {reason.problem}"
    if reason.remedy:
        yield f"    to fix it: {reason.remedy}"
    if reason.choices:
        yield f"    valid choices: {', '.join(reason.choices)}"


def _attention(plan: AttentionPlan) -> str:
    width = f"head_dim {plan.head_dim}" if plan.head_dim else "head_dim unknown"
    if not plan.family:
        return f"{plan.component} ({width}): none"
    return (
        f"{plan.component} ({width}): {plan.family} = {plan.actor_library} '{plan.actor}' | rollout '{plan.rollout}'; "
        f"{plan.package}; {plan.reason}"
    )


def _memory(memory: Memory) -> Iterator[str]:
    if memory.peak_bytes is None:
        yield f"memory       unknown: {memory.unknown}"
        return
    has = "not known" if memory.capacity_bytes is None else gib(memory.capacity_bytes)
    less = f", {gib(memory.reserved_bytes)} of it for driver and runtime" if memory.reserved_bytes else ""
    phase = memory.peak_phase.replace("_", " ")
    fullest = "per device"
    if memory.by_device:
        fullest = f"on one {max(memory.by_device, key=lambda kind: max(memory.by_device[kind].values()))} device"
    yield f"memory       peak {gib(memory.peak_bytes)} {fullest} in the {phase} phase; capacity {has}{less}"
    for kind, phases in (memory.by_device or {"": memory.phases}).items():
        if kind:
            yield f"  on each {kind} device: peak {gib(max(phases.values()))}"
        indent = "    " if kind else "  "
        for name, size in phases.items():
            if size:
                yield f"{indent}{name.replace('_', ' '):<{24 - len(indent)}}{gib(size):>11}"
    for role in memory.roles:
        yield f"  {role.name} ({role.placement})"
        yield from map(_item, role.items)
    yield "  host memory"
    yield from map(_item, memory.host)
    if memory.changes:
        yield "  with these changes the peak would be"
        yield from map(_change, memory.changes)


def _item(item: Item) -> str:
    return f"    {item.name:<22}{gib(item.bytes):>11}  {item.detail}"


def _change(change: Change) -> str:
    return f"    {gib(change.peak_bytes):>10}  {' '.join(change.overrides)}{'  (fits)' if change.fits else ''}"


def _stack(plan: Plan) -> Iterator[str]:
    for index, package in enumerate(plan.stack.packages):
        optional = " (optional)" if package.optional else ""
        label = "packages" if index == 0 else ""
        yield f"{label:<13}{package.distribution}{package.specifier}{optional}: {package.purpose}"
    yield f"constraints  {plan.stack.constraints}"
    yield f"image        {plan.stack.image}"
    yield f"evidence     {plan.stack.evidence}"
