"""What the roles ask of the cluster, and whether it has it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni_backends.launch.ray import REMOTE, RayOptions
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ClusterError
from omni_portable.contracts.launcher import Role

Resources = dict[str, float]
"""Ray's names of resources -> amount."""
CPU = "CPU"
RANK_DEVICES = 1.0
"""Ranks compute on one device each, and no two of them on the same: collectives refuse that."""


def device_resource(role: Role) -> str:
    """What Ray calls the devices of the run ('' where they are not counted), as the device's spec says."""
    name = str(role.config["device"]["name"]).partition(":")[0]
    return str(registry.spec("device", name).capabilities.get("ray_resource", ""))


def demand(role: Role, options: RayOptions) -> Resources:
    """What one replica of a role asks for, of an actor with ranks each rank; empty where it lives with the trainer and
    needs nothing set aside."""
    resource = device_resource(role)
    if role.name == "actor" and not role.ranks:
        return {resource: options.trainer_devices} if resource and options.trainer_devices else {}
    if role.name not in REMOTE and not role.ranks:
        return {}
    devices = RANK_DEVICES if role.ranks else getattr(options, f"{role.name}_devices")
    asked = {CPU: getattr(options, f"{role.name}_cpus"), resource: devices}
    return {name: amount for name, amount in asked.items() if name and amount}


@dataclass(frozen=True)
class Pool:
    """All replicas of one name, with what each asks for.

    Args:
        here: they use devices of the trainer's machine.
        guest / guests: name of the role that shares it and its replicas, '' and 0 where none does.
        guest_cpus: that one of them takes.
    """

    name: str
    each: Resources
    replicas: int
    here: bool = False
    guest: str = ""
    guests: int = 0
    guest_cpus: float = 0.0

    def describe(self) -> str:
        what = " and ".join(f"{amount:g} {name}" for name, amount in self.each.items()) or "nothing"
        return f"{self.name}{f' with {self.guest}' if self.guest else ''}: {self.replicas} x {what}"


def pools(roles: Sequence[Role], options: RayOptions) -> list[Pool]:
    """The roles by name, in their order; those that share devices of another are in its pool."""
    counts: Counter[str] = Counter()
    for role in roles:
        counts[role.name] += role.ranks or 1
    first = {role.name: role for role in reversed(roles)}
    guests = {role.beside: role for role in first.values() if role.beside}
    found = []
    for name, count in counts.items():
        role, here = first[name], name not in REMOTE and not first[name].ranks
        if (guest := guests.get(name)) is not None:
            cpus = demand(guest, options).get(CPU, 0.0)
            each = shared(role, guest, options)
            found.append(Pool(name, each, count, here, guest.name, counts[guest.name], cpus))
        elif not role.beside:
            found.append(Pool(name, demand(role, options), count, here))
    return found


def _asked_by(pool: Pool) -> str:
    """Keys that say what one worker of a pool asks for."""
    role = "trainer" if pool.here else pool.name
    names = [name for name in (f"{role}_devices", f"{role}_cpus") if hasattr(RayOptions, name)]
    return f"launcher.options.{' or '.join(names)}"


def shared(role: Role, guest: Role, options: RayOptions) -> Resources:
    """What one process of a role and one of its guest ask for together: they take turns, on the same device and on the
    CPUs of the larger."""
    own, other = demand(role, options), demand(guest, options)
    cpus = max(own.get(CPU, 0.0), other.get(CPU, 0.0))
    return ({CPU: cpus} if cpus else {}) | {name: amount for name, amount in own.items() if name != CPU}


@dataclass(frozen=True)
class Place:
    """Where a process goes.

    Args:
        pool / bundle: which pool, and which of the bundles that it consists of.
        takes: of the bundle.
    """

    pool: str
    bundle: int
    takes: Resources


def place(role: Role, wanted: Sequence[Pool], options: RayOptions) -> Place:
    """The place of a replica, or of a rank (which is given as a replica), among pools that were reserved.

    Guests are spread over the bundles evenly. In a shared bundle each process takes half of the device, so that Ray
    shows it to both; the guest takes its CPUs, by which Ray gives it threads, and the rank, which is told its number of
    threads, what is left of them.
    """
    own = demand(role, options)
    pool = next((pool for pool in wanted if pool.guests and role.name in (pool.name, pool.guest)), None)
    if pool is None:
        return Place(role.name, role.replica, own)
    takes = {name: amount / 2 for name, amount in pool.each.items() if name != CPU}
    if role.name == pool.guest:
        return Place(pool.name, role.replica * pool.replicas // pool.guests, takes | {CPU: own.get(CPU, 0.0)})
    return Place(pool.name, role.replica, takes | {CPU: pool.each.get(CPU, 0.0) - pool.guest_cpus})


def local_cpus(wanted: Sequence[Pool], options: RayOptions) -> int:
    """CPUs of a cluster that is started for these pools."""
    return options.cpus or math.ceil(sum(pool.each.get(CPU, 0.0) * pool.replicas for pool in wanted)) + 4


def check_room(
    wanted: Sequence[Pool], free: Mapping[str, float], nodes: Sequence[Mapping[str, float]], placement: str = "pack"
) -> None:
    """
    Args:
        free: what the cluster has left, all machines together.
        nodes: what each machine has in all.
        placement: see `RayOptions`.

    Raises:
        ClusterError: names the pools, and of what there is too little.
    """
    total: Counter[str] = Counter()
    for pool in wanted:
        for name, amount in pool.each.items():
            total[name] += amount * pool.replicas  # type: ignore[assignment]
    missing = {name: amount - free.get(name, 0.0) for name, amount in total.items() if amount > free.get(name, 0.0)}
    asked = "; ".join(pool.describe() for pool in wanted if pool.each)
    if missing:
        lacks = ", ".join(f"{amount:g} {name} (of {total[name]:g})" for name, amount in missing.items())
        has = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in total)
        turns = "rollout" in {pool.name for pool in wanted} and any(name != CPU for name in missing)
        more = ", or raise launcher.options.cpus of a cluster that is started here" if CPU in missing else ""
        share = "; in mode sync launcher.options.rollout_devices=0 has rollout share the actor's devices"
        raise ClusterError(
            f"the pools of this run are larger than what the Ray cluster has free: missing are {lacks}; asked for are "
            f"{asked}; free are {has} on {len(nodes)} machine{'s' * (len(nodes) != 1)}",
            remedy="add machines, end other jobs, or lower actor.world_size, rollout.replicas, reward.workers, "
            f"teacher.workers or what each of them is given in launcher.options{more}{share if turns else ''}",
        )
    for pool in wanted:
        together = pool.replicas if placement == "strict_pack" else 1
        apart = pool.replicas if placement == "strict_spread" and pool.each else 1
        if apart > len(nodes):
            raise ClusterError(
                f"launcher.options.placement=strict_spread: the pool {pool.describe()} needs {apart} machines, and the "
                f"Ray cluster has {len(nodes)}",
                remedy="set launcher.options.placement=spread, which uses as many as there are, or add machines",
            )
        if not any(
            all(node.get(name, 0.0) >= amount * together for name, amount in pool.each.items()) for node in nodes
        ):
            whole = "the whole pool" if together > 1 else "one worker of the pool"
            other = " or set launcher.options.placement=pack," if together > 1 else ""
            raise ClusterError(
                f"no machine of the Ray cluster is large enough for {whole} {pool.describe()}",
                remedy=f"lower {_asked_by(pool)},{other} or add a larger machine",
            )
