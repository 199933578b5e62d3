"""Who has which devices, where a launcher gives roles processes and devices of their own. Specs are read only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
    """

    ranks: int
    counts: Mapping[str, float]
    apart: bool
    shares: Mapping[str, str]

    @property
    def used(self) -> int:
        """Devices of the whole run."""
        return max(1, math.ceil(sum(self.counts.values())))


def cluster_layout(config: RunConfig, target: Target) -> Layout | None:
    """The layout, or None where the launcher has no devices of roles to give out, or they are not counted (a CPU).

    A launcher of several processes says by its options what one process of a role takes: `trainer_devices`, and
    `actor_devices`, `rollout_devices`, `reward_devices`, `teacher_devices`. An engine that works on several devices
    takes at least as many as its own options say.
    """
    launcher = plugin_spec("launcher", config.launcher.name, "launcher.name")
    options = plugin_options("launcher", config.launcher.name, config.launcher.options, key="launcher.options")
    if not launcher.capabilities.get("multi_process") or not hasattr(options, "rollout_devices"):
        return None
    if target.profile.torch_device_type == "cpu":
        return None
    engine = plugin_spec("train_engine", config.actor.engine, "actor.engine").capabilities
    ranks = config.actor.world_size if engine.get("rank_processes") else 0
    rollout = float(options.rollout_devices)
    parallel = _engine_devices(config)
    if rollout and parallel > 1:
        rollout = max(rollout, float(parallel))
    teachers = len(config.model.teachers) * config.teacher.workers if pooled(config) else 0
    rows = {
        "actor": (ranks or 1, float(options.actor_devices if ranks else options.trainer_devices), "rank"),
        "rollout": (config.rollout.replicas, rollout, "replica"),
        "rewards": (config.reward.workers, float(options.reward_devices), "worker"),
        "teachers": (teachers, float(options.teacher_devices), "worker"),
    }
    counts = {role: number * each for role, (number, each, _) in rows.items() if number * each}
    shares = {role: _share(*rows[role]) for role in counts}
    return Layout(ranks or 1, counts, rollout > 0, shares)


def layout_use(layout: Layout, asked: int | None, sharded: bool) -> tuple[Devices, list[Reason], list[Reason]]:
    """What a layout uses; why it cannot run on `asked` devices (None: as many as it needs), and what would idle."""
    used = layout.used
    total = "; ".join(f"{role} {count:g} ({layout.shares[role]})" for role, count in layout.counts.items())
    spread = f"; the actor's weights, gradients and optimizer state are sharded over {layout.ranks} devices"
    own = "roles have devices of their own" if layout.apart else "rollout shares the actor's device"
    devices = Devices(used if asked is None else asked, used, f"{own}: {total}{spread if sharded else ''}")
    if asked is not None and asked < used:
        problem = f"the roles need {used} devices, of which {asked} {'is' if asked == 1 else 'are'} there: {total}"
        remedy = (
            f"plan with --devices {used}, or lower actor.world_size, rollout.replicas or what launcher.options give"
        )
        return devices, [Reason("devices", problem, remedy)], []
    if asked is not None and asked > used:
        problem = f"{used} of {asked} devices would be used: {total}"
        return devices, [], [Reason("devices", problem, f"plan with --devices {used}, or raise rollout.replicas")]
    return devices, [], []


def _engine_devices(config: RunConfig) -> int:
    """Devices that one rollout engine works on, as its options say; 1 where they say nothing."""
    options = plugin_options("rollout_engine", config.rollout.engine, config.rollout.options, key="rollout.options")
    return int(getattr(options, "tensor_parallel_size", getattr(options, "devices", 1)))


def _share(number: int, each: float, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'} x {each:g}"
