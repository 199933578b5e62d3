"""The processes of one TransferQueue: started for one run, or found again by name."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from importlib import resources
from typing import Any

import ray
from omegaconf import OmegaConf
from ray.exceptions import GetTimeoutError, RayError
from transfer_queue.controller import TransferQueueController
from transfer_queue.sampler import SequentialSampler
from transfer_queue.storage.simple_storage import SimpleStorageUnit
from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies

from omni_backends.dataplane.transferqueue import TransferQueueOptions
from omni_backends.dataplane.transferqueue.keeper import Keeper
from omni_backends.launch.ray.disk import of_ray
from omni_portable.contracts.errors import ClusterError, ConfigError

log = logging.getLogger(__name__)

BACKEND = "SimpleStorage"
CONTROLLER = "controller"
PREFIX = "omni-portable-queue-"
START_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Service:
    """A running TransferQueue.

    Args:
        name: of the queue; runs on one cluster never see each other's.
        settings: TransferQueue's own configuration with the addresses of its processes.
        actors: of TransferQueue's processes, controller first.
        keepers: actors that own large columns (see :mod:`keeper`), at most one for each machine.
    """

    name: str
    settings: Any
    actors: tuple[Any, ...]
    keepers: tuple[Any, ...]

    def stop(self) -> None:
        """End the processes, and what is stored in them."""
        if ray.is_initialized():
            for actor in reversed((*self.actors, *self.keepers)):
                ray.kill(actor)


def find_or_start(options: TransferQueueOptions) -> Service:
    """The queue that `options` name, or a new one. This process is connected to the cluster.

    Raises:
        ClusterError: its processes do not start or do not answer.
        ConfigError: it was started without objects, and these are asked for.
    """
    name = options.queue or uuid.uuid4().hex
    try:
        return _find(name, options) if options.queue and _exists(name) else _start(name, options)
    except RayError as error:
        raise of_ray(
            ClusterError,
            f"the processes of TransferQueue do not run on the Ray cluster: {' '.join(str(error).split())[:300]}",
            "install the same packages on every machine of the cluster; see Ray's session directory for output",
        ) from error


def _exists(name: str) -> bool:
    try:
        ray.get_actor(CONTROLLER, namespace=PREFIX + name)
    except ValueError:
        return False
    return True


def _find(name: str, options: TransferQueueOptions) -> Service:
    controller = ray.get_actor(CONTROLLER, namespace=PREFIX + name)
    settings = _answer(controller.get_config.remote(), name)
    if settings is None:
        raise ClusterError(
            f"the queue '{name}' was never completely started",
            remedy="wait until the process that starts it is ready, or name another (dataplane.options.queue)",
        )
    units = [ray.get_actor(unit, namespace=PREFIX + name) for unit in settings.backend[BACKEND].zmq_info]
    keepers = [ray.get_actor(keeper, namespace=PREFIX + name) for keeper in settings.keepers]
    if options.objects_from_kib and not keepers:
        raise ConfigError(
            f"dataplane.options.objects_from_kib={options.objects_from_kib}: the queue '{name}' was started without "
            "objects (objects_from_kib=0)",
            remedy="set dataplane.options.objects_from_kib=0 here, or name another queue (dataplane.options.queue)",
        )
    log.info("found the queue '%s'", name)
    return Service(name, settings, (controller, *units), tuple(keepers))


def _start(name: str, options: TransferQueueOptions) -> Service:
    """Without CPUs of their own: they move data while others wait for it, and must never be short of room to start."""
    empty = OmegaConf.create({}, flags={"allow_objects": True})
    settings: Any = OmegaConf.merge(empty, OmegaConf.load(str(resources.files("transfer_queue") / "config.yaml")))
    storage = settings.backend[BACKEND]
    storage.num_data_storage_units = options.storage_units
    lasting = {"namespace": PREFIX + name, "num_cpus": 0, "lifetime": "detached" if options.queue else None}
    controller = TransferQueueController.options(name=CONTROLLER, **lasting).remote(
        sampler=SequentialSampler(), polling_mode=False
    )
    own = dict(storage, _run_id=name)
    places = get_node_round_robin_scheduling_strategies(options.storage_units)
    units = {
        f"unit-{rank}": SimpleStorageUnit.options(name=f"unit-{rank}", scheduling_strategy=where, **lasting).remote(
            config=own
        )
        for rank, where in enumerate(places)
    }
    machines = {where.node_id: where for where in places} if options.objects_from_kib else {}
    keepers = {
        f"keeper-{rank}": ray.remote(Keeper)
        .options(name=f"keeper-{rank}", scheduling_strategy=where, **lasting)
        .remote()
        for rank, where in enumerate(machines.values())
    }
    settings.keepers = list(keepers)
    service = Service(name, settings, (controller, *units.values()), tuple(keepers.values()))
    try:
        for keeper in service.keepers:
            _answer(keeper.sweep.remote([]), name)
        settings.controller.zmq_info = _answer(controller.get_zmq_server_info.remote(), name)
        storage.zmq_info = {rank: _answer(unit.get_zmq_server_info.remote(), name) for rank, unit in units.items()}
        _answer(controller.store_config.remote(settings), name)
    except BaseException:
        service.stop()
        raise
    log.info("started the queue '%s' with %d storage processes and %d for objects", name, len(units), len(keepers))
    if keepers:
        memory = int(dict(ray.cluster_resources()).get("object_store_memory", 0)) >> 20
        log.info("groups up to %d MiB may wait; the cluster's object stores have %d MiB", options.capacity_mib, memory)
    return service


def _answer(reference: Any, name: str) -> Any:
    try:
        return ray.get(reference, timeout=START_TIMEOUT_S)
    except GetTimeoutError as error:
        raise of_ray(
            ClusterError,
            f"the processes of the queue '{name}' do not answer within {START_TIMEOUT_S:g} seconds",
            "see `ray status` and Ray's session directory",
        ) from error
