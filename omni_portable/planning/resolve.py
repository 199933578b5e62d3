"""A recipe on a device: everything that can be known without the device, without torch and without the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from omni_portable.config.loader import load_config
from omni_portable.config.schema import RunConfig
from omni_portable.models.outline import DTYPE_BYTES, ModelOutline, read_outline
from omni_portable.planning.kernels import plan_attention, plan_precision
from omni_portable.planning.layout import cluster_layout, layout_use
from omni_portable.planning.memory import plan_memory
from omni_portable.planning.plan import (
    AttentionPlan,
    Collectives,
    Memory,
    Package,
    Plan,
    Reason,
    Stack,
    Verdict,
)
from omni_portable.planning.setting import gather
from omni_portable.planning.support import device_use, is_sharded, unsupported
from omni_portable.planning.target import Target, resolve_target

METHOD = (
    "bytes are sums over tensors; fragmentation of the allocator and workspaces of kernels are not counted, so a plan "
    "that takes more than nine tenths of the memory is called tight",
    "actor and rollout engine share a device and take turns; each has a copy of the transformer of its own",
    "scorers are not counted: they run on the host unless they say otherwise; nor are teachers of a pool under a "
    "launcher of several processes, which have devices of their own",
)

APART = (
    "rollout engines have devices of their own, so each device holds one role, with a whole copy of the transformer on "
    "every rollout device"
)


def make_plan(
    recipe: str,
    device: str,
    *,
    devices: int | None = None,
    overrides: Sequence[str] = (),
    memory_bytes: int | None = None,
) -> Plan:
    """Resolve a recipe for a device.

    Args:
        recipe: as `omni-portable train` takes it.
        device: 'NAME:GENERATION', or what `target.resolve_target` takes besides.
        devices: how many, at least 1; None is as many as a launcher's roles need, otherwise 1.
        overrides: as for training; `device.name` is set to the device.
        memory_bytes: of one device, in place of the table's.

    Raises:
        ConfigError: an unknown recipe, key, device or generation.
        ModelError: the model's folder is here, but incomplete, damaged or of another family.
    """
    target = resolve_target(device)
    config = load_config(recipe, [*overrides, f"device.name={target.where}"])
    precision, reasons = plan_precision(config, target)
    reasons += unsupported(config, target)
    outline = read_outline(config, precision.dtype)
    attention, refused = plan_attention(config, target, outline.attention or ())
    layout = cluster_layout(config, target)
    if layout is None:
        use, warnings = device_use(config, devices or 1)
        few: list[Reason] = []
        shards = use.used if is_sharded(config) else 1
    else:
        shards = layout.ranks if is_sharded(config) else 1
        use, few, warnings = layout_use(layout, devices, shards > 1)
    apart = layout is not None and layout.apart
    memory, exceeded, watched = _memory(
        config, outline, target, precision.dtype, attention, shards, apart, memory_bytes
    )
    reasons += [*refused, *few, *exceeded]
    warnings += watched
    if outline.attention is None:
        warnings.append(Reason("attention", f"which kernels the model needs is not known: {outline.unknown}"))
    profile = target.profile
    return Plan(
        recipe=recipe,
        overrides=tuple(overrides),
        device=target.name,
        generation=target.generation,
        verdict=_verdict(reasons, memory, outline),
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        devices=use,
        precision=precision,
        attention=attention,
        collectives=Collectives(profile.collective_backend, profile.capabilities.weight_channels),
        features=dict(profile.capabilities.features),
        environment=dict(profile.environment),
        memory=memory,
        stack=_stack(target),
        assumptions=(*_method(memory, outline), *outline.notes),
        notes=profile.notes,
    )


def _memory(
    config: RunConfig,
    outline: ModelOutline,
    target: Target,
    dtype: str,
    attention: Sequence[AttentionPlan],
    shards: int,
    apart: bool,
    memory_bytes: int | None,
) -> tuple[Memory, list[Reason], list[Reason]]:
    capacity = target.profile.memory_bytes if memory_bytes is None else memory_bytes
    unknown = outline.unknown if dtype in DTYPE_BYTES else f"the size of dtype '{dtype}' is not known"
    if outline.sizes is None or unknown:
        memory = Memory("sizes_unknown", capacity, target.profile.reserved_bytes, unknown=unknown)
        return memory, [], [Reason("memory", f"unknown: {unknown}")]
    family = next((plan.family for plan in attention if plan.component == outline.trainable), "")
    return plan_memory(gather(config, outline, outline.sizes, dtype, family, shards, apart), target, capacity)


def _method(memory: Memory, outline: ModelOutline) -> tuple[str, ...]:
    """What the estimate took for granted, and its formulas; nothing where none was made."""
    if memory.peak_bytes is None or outline.sizes is None:
        return ()
    shared, *others = METHOD[1:]
    together = APART if memory.by_device else shared
    return (METHOD[0], together, *others, *outline.sizes.formulas())


def _verdict(reasons: Sequence[Reason], memory: Memory, outline: ModelOutline) -> Verdict:
    if reasons:
        return "cannot_run"
    if memory.status in ("capacity_unknown", "sizes_unknown") or outline.attention is None:
        return "unknown"
    return "runs"


def _stack(target: Target) -> Stack:
    profile = target.profile
    packages = tuple(Package(**dataclasses.asdict(need)) for need in profile.packages)
    return Stack(packages, profile.constraints, profile.image, profile.evidence)
