"""What planning answers, as data; `dataclasses.asdict` of a :class:`Plan` is the JSON document (docs/planning.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SCHEMA_VERSION = 1
"""Of the JSON document; a key is removed or changes its meaning only together with this number."""

Phase = Literal["rollout", "training", "optimizer_step", "weight_sync"]
PHASES: tuple[Phase, ...] = ("rollout", "training", "optimizer_step", "weight_sync")
"""What a device does in turn in a colocated run, and where its memory may peak."""

Verdict = Literal["runs", "unknown", "cannot_run"]
MemoryStatus = Literal["fits", "tight", "exceeds", "capacity_unknown", "sizes_unknown"]


@dataclass(frozen=True)
class Reason:
    """Why it cannot run there, or what to watch.

    Args:
        about: the part that is concerned ('device.dtype', 'attention.vae', 'actor.engine', 'memory').
        problem: one sentence.
        remedy: what to change, '' where nothing helps.
        choices: what may be chosen instead.
    """

    about: str
    problem: str
    remedy: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Precision:
    """The transformer's dtype, why, and what else the device computes in."""

    dtype: str
    reason: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class AttentionPlan:
    """The kernel of one kind of attention in both spellings; '' where none can be had, and a reason says so.

    Args:
        component / head_dim / causal / mask: what was asked for; head_dim is None where it is not known.
        family / actor / actor_library / rollout: the choice, as in `AttentionChoice`.
        package: what must be installed for it.
        reason: why this one.
    """

    component: str
    head_dim: int | None
    causal: bool
    mask: str
    family: str = ""
    actor: str = ""
    actor_library: str = ""
    rollout: str = ""
    package: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Item:
    """Something that takes memory.

    Args:
        name: 'weights', 'gradients', ...
        bytes: on one device.
        detail: how the number comes about.
        phases: when it is there.
    """

    name: str
    bytes: int
    detail: str
    phases: tuple[Phase, ...] = PHASES


@dataclass(frozen=True)
class Role:
    """Memory of one role on one device.

    Args:
        name: 'actor', 'rollout', and where the host is the device 'buffer' (trajectories).
        placement: 'replicated': every device holds all of it; 'sharded': each of N devices holds a part.
        items: what it consists of.
    """

    name: str
    placement: Literal["replicated", "sharded"]
    items: tuple[Item, ...]

    def total(self, phase: Phase) -> int:
        """Bytes on one device in a phase."""
        return sum(item.bytes for item in self.items if phase in item.phases)


@dataclass(frozen=True)
class Change:
    """Overrides that would lower the peak, the peak with them, and whether it then fits."""

    overrides: tuple[str, ...]
    peak_bytes: int
    fits: bool


@dataclass(frozen=True)
class Memory:
    """The estimate for one device.

    Args:
        status: 'tight' fits with less than a tenth to spare.
        capacity_bytes: of one device; None where only the machine can tell.
        reserved_bytes: of it, what driver, runtime and communicators take.
        peak_bytes / peak_phase: the largest sum of all roles; None and '' where sizes are not known.
        phases: phase -> bytes of all roles; where these have devices of their own, of the fullest device.
        roles: what the sums consist of.
        host: items in the host's memory (on a device of its own they are not part of the peak).
        changes: what would lower the peak, where it does not fit.
        unknown: why sizes are not known.
        by_device: 'actor' and 'rollout' -> phase -> bytes on one such device; empty where the roles share devices.
    """

    status: MemoryStatus
    capacity_bytes: int | None = None
    reserved_bytes: int = 0
    peak_bytes: int | None = None
    peak_phase: str = ""
    phases: Mapping[str, int] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()
    host: tuple[Item, ...] = ()
    changes: tuple[Change, ...] = ()
    unknown: str = ""
    by_device: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Package:
    """A pinned distribution of the device's stack (see `contracts.device.PackageNeed`)."""

    distribution: str
    specifier: str
    purpose: str
    install: str
    optional: bool
    serves: str = ""


@dataclass(frozen=True)
class Stack:
    """What must be installed, and what proves it: constraints, image, evidence of a run on such hardware."""

    packages: tuple[Package, ...]
    constraints: str
    image: str
    evidence: str


@dataclass(frozen=True)
class Collectives:
    """Backend of process groups, and ways to hand weights to another process."""

    backend: str
    weight_channels: tuple[str, ...]


@dataclass(frozen=True)
class Devices:
    """How many were asked for, how many the recipe's engines use, and how."""

    asked: int
    used: int
    use: str


@dataclass(frozen=True)
class Plan:
    """A recipe on a device.

    Args:
        recipe / overrides: as given.
        device / generation: '' for a device without generations.
        verdict: 'unknown' where nothing forbids it, but something could not be found out.
        reasons: why it cannot run; empty unless the verdict is 'cannot_run'.
        warnings: what to watch.
        features: of the generation.
        environment: variables of every role.
        assumptions: what the estimate takes for granted, and its formulas.
        notes: what the device's tables say beside their values.
    """

    recipe: str
    overrides: tuple[str, ...]
    device: str
    generation: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]
    devices: Devices
    precision: Precision
    attention: tuple[AttentionPlan, ...]
    collectives: Collectives
    features: Mapping[str, bool]
    environment: Mapping[str, str]
    memory: Memory
    stack: Stack
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def where(self) -> str:
        """'NAME' or 'NAME:GENERATION'."""
        return f"{self.device}:{self.generation}" if self.generation else self.device
