"""Roles as Ray actors in placement groups, one pool per kind of role."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from omni_backends.launch.local import LocalLauncher
from omni_backends.launch.ray import REMOTE, RayOptions, check_parallel
from omni_backends.launch.ray.cluster import Connection, connect
from omni_backends.launch.ray.engine import RemoteRolloutEngine
from omni_backends.launch.ray.head import LOOK_S, Head
from omni_backends.launch.ray.host import RewardHost, RolloutHost, TeacherHost, versions
from omni_backends.launch.ray.logs import LogCollector
from omni_backends.launch.ray.own_device import check_first_device, on_this_machine
from omni_backends.launch.ray.pools import Pool, check_room, device_resource, local_cpus, place, pools
from omni_backends.launch.ray.rank_host import RankHost
from omni_backends.launch.ray.ranks import RankPool, StartedRank
from omni_backends.launch.ray.rewards import RemoteRewards, ScoringLimits
from omni_backends.launch.ray.teachers import RemoteTeacher
from omni_backends.launch.ray.worker import Worker
from omni_portable.config.schema import RewardConfig
from omni_portable.contracts.errors import ClusterError, LifecycleError, OmniPortableError, WorkerLostError
from omni_portable.contracts.launcher import Role
from omni_portable.rollout.codec import pack

log = logging.getLogger(__name__)

HOSTS = {"actor": RankHost, "rollout": RolloutHost, "reward": RewardHost, "teacher": TeacherHost}
POLICY = ("timeout_s", "retries")
"""Keys of the reward section that say how long scoring may take."""
ROOM_S = 10.0
"""Seconds that other runs are given to return what they used."""
AGAIN_S = 1.0
"""Before a worker is placed again."""
CALLS_AT_ONCE = 32
"""Calls that a worker may serve side by side, so that an abort is never queued behind what it aborts."""


class RayLauncher:
    """Rollout engines, rewards and teachers get processes of their own, and so do the ranks of a train engine that has
    some; every other role is built in the trainer's.

    `start` and `stop` may be called from several threads.
    """

    name = "ray"

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._here = LocalLauncher()
        self._connection: Connection | None = None
        self._pools: list[Pool] = []
        self._groups: dict[str, PlacementGroup] = {}
        self._workers: dict[str, Worker] = {}
        self._head: Head | None = None
        self._logs = LogCollector()
        self._lock = threading.Lock()
        self._closed = False
        self._ranked = False
        """Training is in processes of the cluster, so that the trainer itself needs none of the samples' tensors."""

    @property
    def connection(self) -> Connection:
        """How the cluster was reached."""
        if self._connection is None:
            raise LifecycleError("the launcher has no cluster yet", remedy="reserve the roles first")
        return self._connection

    def reserve(self, roles: Sequence[Role]) -> None:
        """Reach the cluster and set aside what all roles ask for.

        Raises:
            ClusterError: the cluster cannot be reached, or there is no room.
            ConfigError: an engine of several devices beside another number of them.
        """
        for role in roles:
            if role.name == "rollout":
                rollout = role.config.get("rollout", {})
                name, options = rollout.get("engine", "native"), rollout.get("options", {})
                check_parallel(self._options, str(role.config["device"]["name"]), name, options)
        wanted = self._pools = pools(roles, self._options)
        self._ranked = any(role.ranks for role in roles)
        self._connection = connect(self._options, local_cpus(wanted, self._options))
        self._head = Head(self._connection.address, self._connection.started)
        self._find_room(wanted)
        for pool in wanted:
            if pool.each:
                self._groups[pool.name] = self._group(pool)
            if pool.each and pool.here:
                check_first_device(
                    self._groups[pool.name], pool, device_resource(roles[0]), self._options.start_timeout_s
                )

    def start(self, role: Role) -> Any:
        """
        Returns:
            A `RemoteRolloutEngine`, `RemoteRewards` or `RemoteTeacher`, or the role itself where it lives here.

        Raises:
            LifecycleError: the role is running, or the launcher was shut down.
            ClusterError: the worker does not start in time, or runs other versions than the trainer.
            WorkerLostError: its process ended as it started, though its machine lives.
        """
        if role.name not in REMOTE:
            return self._here.start(self._with_ranks(role) if role.ranks else role)
        deadline = time.monotonic() + self._options.start_timeout_s
        while True:
            dead = dead_machines()
            try:
                return self._try_start(role)
            except WorkerLostError as error:
                if not (placed_on_dead(error, dead) and time.monotonic() < deadline):
                    raise
                log.warning("'%s' is placed again: its machine was lost as it started (%s)", role.label, error.problem)
                time.sleep(AGAIN_S)

    def _try_start(self, role: Role) -> Any:
        with self._lock:
            if self._closed or role.label in self._workers:
                why = "the launcher was shut down" if self._closed else "it runs already"
                raise LifecycleError(f"the role '{role.label}' cannot be started: {why}")
            worker = self._workers[role.label] = self._actor(role)
        try:
            return self._handle(role, worker)
        except BaseException:
            self.stop(role)
            raise

    def stop(self, role: Role) -> None:
        """End one role, whether or not its process still lives."""
        if role.name not in REMOTE:
            self._here.stop(role)
            return
        with self._lock:
            worker = self._workers.pop(role.label, None)
        if worker is not None:
            self._logs.release(role.label)
            worker.end()

    async def lost(self) -> OmniPortableError:
        """Once the head of the cluster is gone, or Ray's process on this machine."""
        while (gone := self._head.gone if self._head else None) is None:
            await asyncio.sleep(LOOK_S)
        return gone

    def shutdown(self) -> None:
        """End the workers, give back what was set aside, and leave the cluster (or end it, if it was started here)."""
        with self._lock:
            self._closed = True
            workers, self._workers = list(self._workers.values()), {}
        if self._connection is None or not ray.is_initialized():
            self._here.shutdown()
            return
        self._logs.close()
        gone = self._head.look() if self._head else None
        for worker in workers:
            worker.end()
        self._here.shutdown()
        while self._groups and gone is None:
            remove_placement_group(self._groups.popitem()[1])
        if self._head is not None:
            self._head.close()
        self._connection.close(lost=gone is not None)
        self._connection = None

    def _find_room(self, wanted: Sequence[Pool]) -> None:
        """What another run has just given back takes a moment to be free; what is not there at all is refused now."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        check_room(wanted, ray.cluster_resources(), nodes, self._options.placement)
        deadline = time.monotonic() + ROOM_S
        while True:
            try:
                return check_room(wanted, ray.available_resources(), nodes, self._options.placement)
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _group(self, pool: Pool) -> PlacementGroup:
        each = on_this_machine(pool.each) if pool.here else pool.each
        group = placement_group([each] * pool.replicas, strategy=self._options.placement.upper())
        if not group.wait(self._options.answer_timeout_s):
            remove_placement_group(group)
            raise ClusterError(
                f"the Ray cluster did not set aside the pool {pool.describe()} "
                f"({self._options.placement}) within {self._options.answer_timeout_s:g} seconds",
                remedy="launcher.options.placement=pack asks the least; see `ray status` for what is taken",
            )
        return group

    def _with_ranks(self, role: Role) -> Role:
        """The same role, whose engine has its ranks started in the role's pool."""
        spawn = RankPool(partial(self._start_ranks, role), bool(device_resource(role)), self._bucket_bytes())
        return replace(role, here={**role.here, "setup": replace(role.here["setup"], spawn=spawn)})

    def _bucket_bytes(self) -> int:
        return math.ceil(self._options.bucket_mib * (1 << 20))

    def _start_ranks(self, role: Role, count: int) -> list[StartedRank]:
        roles = [replace(role, replica=rank, log=rank_log(role, rank)) for rank in range(count)]
        workers = [self._actor(one) for one in roles]
        try:
            return [self._started(one, worker) for one, worker in zip(roles, workers, strict=True)]
        except BaseException:
            for worker in workers:
                ray.kill(worker.actor)
            raise

    def _started(self, role: Role, worker: Worker) -> StartedRank:
        patience = self._options.start_timeout_s
        shared = True if role.log is None else self._logs.open(worker, role.log, patience)
        facts = worker.ask("here", role.replica == 0, timeout_s=patience)
        check_versions(role.label, facts["versions"], versions())
        worker.pid = facts["pid"]
        log.info("'%s' runs in process %d on %s", role.label, worker.pid, facts["address"])
        return StartedRank(worker, shared, facts)

    def _actor(self, role: Role) -> Worker:
        at = place(role, self._pools, self._options)
        if at.pool not in self._groups and at.takes:
            raise LifecycleError(f"the role '{role.label}' was not reserved", remedy="reserve all roles first")
        asked = dict(at.takes)
        settings: dict[str, Any] = {
            "num_cpus": asked.pop("CPU", 0),
            "num_gpus": asked.pop("GPU", 0),
            "resources": asked,
            "max_concurrency": CALLS_AT_ONCE,
            "max_restarts": 0,
            "runtime_env": {"env_vars": dict(role.environment)},
        }
        if at.pool in self._groups:
            settings["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._groups[at.pool], placement_group_bundle_index=at.bundle
            )
        actor = ray.remote(HOSTS[role.name]).options(**settings).remote()
        where = str(role.log) if role.log else "Ray's session directory"
        return Worker(role.label, actor, self._options.answer_timeout_s, where, self._head)

    def _handle(self, role: Role, worker: Worker) -> Any:
        if role.log is not None:
            self._logs.open(worker, role.log, self._options.start_timeout_s)
        description = {
            "name": role.name,
            "build": role.build,
            "config": role.config,
            "replica": role.replica,
            "arguments": role.arguments,
        }
        built = worker.ask("build", pack(description), timeout_s=self._options.start_timeout_s)
        check_versions(role.label, built["versions"], versions())
        worker.pid = built["pid"]
        log.info("'%s' runs in process %d on %s", role.label, worker.pid, built["address"])
        least = self._options.objects_from_kib << 10
        if role.name == "rollout":
            return RemoteRolloutEngine(worker, built["name"], self._bucket_bytes(), least, tensors=self._ranked)
        if role.name == "teacher":
            return RemoteTeacher(worker, least if self._ranked else 0)
        policy = {name: value for name, value in role.config.get("reward", {}).items() if name in POLICY}
        own = replace(RewardConfig(), **policy)
        return RemoteRewards(worker, ScoringLimits(own.timeout_s, own.retries, self._options.answer_timeout_s))


def dead_machines() -> frozenset[str]:
    """Ids of those that the cluster has lost."""
    return frozenset(str(node["NodeID"]) for node in ray.nodes() if not node["Alive"])


def placed_on_dead(error: WorkerLostError, before: frozenset[str]) -> bool:
    """Was a worker lost as it started because Ray placed it on a machine that is gone, but not yet known to be?

    Args:
        before: :func:`dead_machines` when it was placed.
    """
    return isinstance(error.__cause__, ActorUnavailableError) or dead_machines() > before


def rank_log(role: Role, rank: int) -> Path | None:
    """'logs/actor-1.log' beside the role's own."""
    return None if role.log is None else role.log.with_name(f"{role.name}-{rank}{role.log.suffix}")


def check_versions(label: str, there: dict[str, str], here: dict[str, str]) -> None:
    """
    Raises:
        ClusterError: a worker runs other versions than the trainer: their numbers need not agree.
    """
    different = [
        f"{name} {there.get(name)} there and {here[name]} here" for name in here if there.get(name) != here[name]
    ]
    if different:
        raise ClusterError(
            f"the worker '{label}' runs other versions than the trainer: {'; '.join(different)}",
            remedy=f"install omni-portable {version('omni-portable')} with the same constraints on every machine",
        )
