"""Who has which devices, where a launcher gives roles processes and devices of their own. Specs are read only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from omni_portable.config.colocation import beside_ranks, engine_devices, rank_processes
from omni_portable.config.modes import SYNC
from omni_portable.config.plugins import plugin_options, plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.config.teachers import pooled
from omni_portable.planning.plan import Devices, Reason
from omni_portable.planning.target import Target


@dataclass(frozen=True)
class Layout:
    """Devices of a run whose roles have processes of their own.

    Args:
        ranks: devices over which the actor works; 1 where it works in the trainer's process.
        counts: role -> devices that all its processes take together; a part of one may be shared with others.
        apart: rollout has devices that are not the actor's.
        shares: what each role's number is made of, in words.
        drawing: devices on which rollout replicas take turns with ranks of the actor; 0 where they do not.
        turns: actor and rollout never work at the same time.
    """

    ranks: int
    counts: Mapping[str, float]
    apart: bool
    shares: Mapping[str, str]
    drawing: int = 0
    turns: bool = False

    @property
    def used(self) -> int:
        """Devices of the whole run."""
        return max(1, math.ceil(sum(self.counts.values())))


def cluster_layout(config: RunConfig, target: Target) -> Layout | None:
    """The layout, or None where one device holds every role, where the launcher has no devices of roles to give out,
    or where they are not counted (a CPU).

    A launcher of several processes says by its options what one process of a role takes: `trainer_devices`,
    `rollout_devices`, `reward_devices`, `teacher_devices`; a rank of the actor has one device. An engine that works on
    several devices takes at least as many as its own options say. Under a launcher of one process only the actor's
    ranks have devices of their own: those of its machine, of which the first is rollout's, too.
    """
    launcher = plugin_spec("launcher", config.launcher.name, "launcher.name")
    options = plugin_options("launcher", config.launcher.name, config.launcher.options, key="launcher.options")
    ranks, turns = rank_processes(config), config.trainer.mode == SYNC
    if target.profile.torch_device_type == "cpu":
        return None
    if launcher.capabilities.get("multi_process") is False and ranks > 1:
        return Layout(ranks, {"actor": ranks}, False, {"actor": _share(ranks, 1, "rank")}, drawing=1, turns=turns)
    if not launcher.capabilities.get("multi_process") or not hasattr(options, "rollout_devices"):
        return None
    rollout = float(options.rollout_devices)
    parallel = engine_devices(config.rollout.engine, config.rollout.options)
    if rollout and parallel > 1:
        rollout = max(rollout, float(parallel))
    teachers = len(config.model.teachers) * config.teacher.workers if pooled(config) else 0
    rows = {
        "actor": (ranks or 1, 1.0 if ranks else float(options.trainer_devices), "rank"),
        "rollout": (config.rollout.replicas, rollout, "replica"),
        "rewards": (config.reward.workers, float(options.reward_devices), "worker"),
        "teachers": (teachers, float(options.teacher_devices), "worker"),
    }
    counts = {role: number * each for role, (number, each, _) in rows.items() if number * each}
    shares = {role: _share(*rows[role]) for role in counts}
    drawing = config.rollout.replicas if beside_ranks(config) else 0
    return Layout(ranks or 1, counts, rollout > 0, shares, drawing, turns)


def layout_use(layout: Layout, asked: int | None, sharded: bool) -> tuple[Devices, list[Reason], list[Reason]]:
    """What a layout uses; why it cannot run on `asked` devices (None: as many as it needs), and what would idle."""
    used = layout.used
    total = "; ".join(f"{role} {count:g} ({layout.shares[role]})" for role, count in layout.counts.items())
    spread = f"; the actor's weights, gradients and optimizer state are sharded over {layout.ranks} devices"
    devices = Devices(used if asked is None else asked, used, f"{_sharing(layout)}: {total}{spread if sharded else ''}")
    if asked is not None and asked < used:
        problem = f"the roles need {used} devices, of which {asked} {'is' if asked == 1 else 'are'} there: {total}"
        remedy = (
            f"plan with --devices {used}, or lower actor.world_size, rollout.replicas or what launcher.options give"
        )
        return devices, [Reason("devices", problem, remedy)], []
    warnings = _idle(layout)
    if asked is not None and asked > used:
        more = "actor.world_size" if layout.drawing else "rollout.replicas"
        problem = f"{used} of {asked} devices would be used: {total}"
        warnings.append(Reason("devices", problem, f"plan with --devices {used}, or raise {more}"))
    return devices, [], warnings


def _sharing(layout: Layout) -> str:
    if layout.apart:
        return "roles have devices of their own"
    if layout.drawing > 1:
        return f"{layout.drawing} rollout replicas take turns with the actor, each on the device of a rank"
    if layout.drawing:
        return "rollout takes turns with the actor on the device of one rank"
    return "rollout shares the actor's device"


def _idle(layout: Layout) -> list[Reason]:
    """Devices that wait although a layout without them, or one that uses them, exists."""
    if layout.turns and layout.apart:
        problem = (
            "under trainer.mode=sync rollout and actor take turns, so the devices of one always wait for the other"
        )
        remedy = "set launcher.options.rollout_devices=0, which puts rollout on the actor's devices, or another mode"
        return [Reason("devices", problem, remedy)]
    if 0 < layout.drawing < layout.ranks:
        waiting = layout.ranks - layout.drawing
        problem = (
            f"{waiting} of the actor's {layout.ranks} devices wait{'s' if waiting == 1 else ''} while rollout draws"
        )
        remedy = (
            f"set launcher.name=ray launcher.options.rollout_devices=0 rollout.replicas={layout.ranks} for a rollout "
            "replica on every one"
        )
        return [Reason("devices", problem, remedy)]
    return []


def _share(number: int, each: float, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'} x {each:g}"
