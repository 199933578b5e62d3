"""Roles in processes of their own, on one machine or many, by Ray. Loads without torch and without Ray."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from omni_backends.launch.ray.address import check_address
from omni_portable.config.colocation import check_colocation, engine_devices, rank_processes
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

LARGEST = {"devices": 1024, "cpus": 16384}
"""What one worker may ask for at most; larger numbers are no machine's, and Ray's own processes end over some."""
MOST_CPUS = 1_000_000
SMALLEST = 1e-4
"""Ray's own granularity of amounts."""
SMALLEST_STORE_MIB = 75
"""Ray's own smallest object store."""
LARGEST_STORE_MIB = 16 << 20
"""16 TiB, which is more than the memory of a machine. Less may still be too much for this one: a start says so."""
REMOTE = ("rollout", "reward", "teacher")
"""Roles with processes of their own; the others live with the trainer (of an actor's ranks, their driver does)."""


@dataclass(frozen=True)
class RayOptions:
    address: str = ""
    """Cluster to join: 'HOST:PORT' of its head, 'ray://HOST:PORT' of its client server, or 'auto' for the one that runs
    on this machine. Empty takes the environment's RAY_ADDRESS; without that, a cluster is started here for this run."""
    rollout_devices: float = 1.0
    """Devices of one rollout replica; 0 shares those of the actor (mode 'sync'): a rank's device, where the actor has
    ranks, else the trainer's. Processors are not counted as devices."""
    rollout_cpus: float = 1.0
    """CPUs that the cluster sets aside for one rollout replica; beside a rank, whose turn is another, the larger of
    both."""
    reward_devices: float = 0.0
    """Devices of one reward worker."""
    reward_cpus: float = 1.0
    """CPUs that the cluster sets aside for one reward worker."""
    teacher_devices: float = 1.0
    """Devices of one teacher worker (teacher.placement=pool); 0 shares the trainer's device."""
    teacher_cpus: float = 1.0
    """CPUs that the cluster sets aside for one teacher worker."""
    actor_cpus: float = 1.0
    """CPUs that the cluster sets aside for one rank of a train engine that works in several processes
    (actor.world_size); each has one device."""
    trainer_devices: float = 1.0
    """Devices that the trainer uses on the machine where it runs, so that the cluster gives them to nobody else; none
    where the train engine works in processes of its own."""
    cpus: int = 0
    """CPUs of a cluster that is started here, as it counts them (they may be more than there are); 0 is what the roles
    ask for and four more."""
    placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    """How the workers of one pool are placed on machines: together or apart, where possible or without exception."""
    object_store_mib: int = 512
    """Shared memory of a cluster that is started here."""
    objects_from_kib: int = 64
    """Media of a sample and, where training is in processes of the cluster, its tensors wait in the object store from
    this size on, and do not pass through the trainer; smaller ones travel with answers, which is faster. 0: all do, for
    clusters with little shared memory."""
    bucket_mib: int = 64
    """Weights are sent in pieces of at most this size (a larger tensor is a piece of its own)."""
    start_timeout_s: float = 900.0
    """Seconds that a worker may take to start and load its model."""
    answer_timeout_s: float = 600.0
    """Seconds that a worker may take to answer a lifecycle call, and to answer beyond what reward.timeout_s and
    reward.retries give its scorers. Drawing has no limit here, but a worker that draws must say in that time how it
    is."""

    def __post_init__(self) -> None:
        for role, what in itertools.product(("trainer", "actor", *REMOTE), LARGEST):
            if hasattr(self, name := f"{role}_{what}"):
                self._check_amount(name, getattr(self, name), what)
        if not 0 <= self.cpus <= MOST_CPUS:
            side = "below 0" if self.cpus < 0 else f"above {MOST_CPUS}"
            raise ConfigError(
                f"launcher.options.cpus={self.cpus} is {side}",
                remedy="give the CPUs that a cluster started here should count, or 0 for what the roles ask for and "
                "four more",
            )
        if self.objects_from_kib < 0:
            raise ConfigError(
                f"launcher.options.objects_from_kib={self.objects_from_kib} is below 0",
                remedy="give a size in KiB, or 0 to keep nothing in the object store",
            )
        check_store(self.object_store_mib)
        for name in ("bucket_mib", "start_timeout_s", "answer_timeout_s"):
            if getattr(self, name) < 1:
                unit = "MiB" if name.endswith("_mib") else "seconds"
                raise ConfigError(
                    f"launcher.options.{name}={getattr(self, name):g} must be 1 or more",
                    remedy=f"give {unit}, or leave it out for {getattr(type(self), name):g}",
                )
        check_address(self.address, "launcher.options.address")

    def _check_amount(self, name: str, amount: float, what: str) -> None:
        if amount < 0:
            raise ConfigError(
                f"launcher.options.{name}={amount:g} is below 0",
                remedy=f"give 0, or a number from {SMALLEST:g} to {LARGEST[what]}",
            )
        if amount > LARGEST[what] or 0 < amount < SMALLEST:
            raise ConfigError(
                f"launcher.options.{name}={amount:g} of one worker",
                remedy=f"give 0, or a number from {SMALLEST:g} to {LARGEST[what]}",
            )
        if what == "devices" and amount > 1 and amount != int(amount):
            raise ConfigError(
                f"launcher.options.{name}={amount:g}: Ray gives whole devices, or a share of a single one",
                remedy=f"give {int(amount)}, {int(amount) + 1}, or a number below 1",
            )

    def check(self, config: RunConfig) -> None:
        """Refuse what a mode cannot run with.

        Raises:
            ConfigError: a mode in which rollout goes on while the actor trains, and no device for it; devices that are
                to be lent, and are those of processes elsewhere; an engine of several devices beside another number;
                replicas that find no rank to share a device with.
        """
        check_colocation(config)
        check_parallel(self, config.device.name, config.rollout.engine, config.rollout.options)
        engine = registry.spec("train_engine", config.actor.engine)
        if config.trainer.hybrid.enabled and engine.capabilities.get("rank_processes"):
            raise ConfigError(
                f"trainer.hybrid.enabled=true lends the devices of the trainer's process, and with launcher.name=ray "
                f"the ranks of actor.engine={engine.name} have theirs in processes of their own",
                remedy="set trainer.hybrid.enabled=false (and more rollout.replicas), or actor.engine=single",
            )
        if config.trainer.mode != "sync" and self.rollout_devices == 0:
            raise ConfigError(
                f"launcher.options.rollout_devices=0: under trainer.mode={config.trainer.mode} rollout goes on while "
                "the actor trains, and needs devices of its own",
                remedy="set launcher.options.rollout_devices=1 or more, or trainer.mode=sync",
            )
        if config.teacher.placement == "pool" and self.teacher_devices == 0 and rank_processes(config):
            raise ConfigError(
                f"launcher.options.teacher_devices=0 shares the trainer's device, and with actor.engine={engine.name} "
                "the trainer's process has none: its ranks have them (on processors none is counted)",
                remedy="leave it at 1, or set teacher.placement=engine, by which the ranks hold the teachers",
            )


def check_store(mib: int) -> None:
    """Refuse an object store of a size that no machine can give.

    Raises:
        ConfigError: below Ray's own smallest, or beyond the memory of any machine.
    """
    if not SMALLEST_STORE_MIB <= mib <= LARGEST_STORE_MIB:
        why = (
            f"Ray needs {SMALLEST_STORE_MIB} at least"
            if mib < SMALLEST_STORE_MIB
            else "no machine has so much memory for it"
        )
        raise ConfigError(
            f"launcher.options.object_store_mib={mib}: {why}",
            remedy="give MiB of shared memory; 512 is enough for images",
        )


def check_parallel(options: RayOptions, device: str, engine: str, rollout: Mapping[str, Any]) -> None:
    """Refuse an engine of several devices beside another number of them.

    Args:
        device: its name; 'auto' is looked at when the roles are placed, by which time it is known.
        engine / rollout: rollout.engine and rollout.options.

    Raises:
        ConfigError: the devices that the engine's options make it work on differ from launcher.options.rollout_devices.
    """
    name, size = device.partition(":")[0], engine_devices(engine, rollout)
    if size in (1, options.rollout_devices) or name == "auto":
        return
    if registry.spec("device", name).capabilities.get("accelerator"):
        raise ConfigError(
            f"rollout.options make every replica of rollout.engine={engine} work on {size} devices, and "
            f"launcher.options.rollout_devices is {options.rollout_devices:g}",
            remedy=f"set launcher.options.rollout_devices={size}",
        )


SPEC = PluginSpec(
    name="ray",
    summary="runs rollout, rewards, teachers and ranks of training in processes of their own, on one machine or many",
    target="omni_backends.launch.ray.launcher:RayLauncher",
    options=RayOptions,
    capabilities={"multi_process": True},
    extra="ray",
)
