"""The trainer uses a device that it did not get from Ray: it is set aside there, so that no worker gets it too."""

from __future__ import annotations

import os

import ray
from ray._private.accelerators import get_accelerator_manager_for_resource
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from omni_backends.launch.ray.pools import Pool, Resources
from omni_portable.contracts.errors import ClusterError


def on_this_machine(each: Resources) -> Resources:
    """The same, to be set aside on the machine of this process."""
    if ray.util.client.ray.is_connected():
        raise ClusterError(
            "the trainer joined the Ray cluster from outside, where its own devices cannot be set aside",
            remedy="run it on a machine of the cluster (launcher.options.address=auto), or, where its device is none "
            "of the cluster's, set launcher.options.trainer_devices=0",
        )
    return each | {f"node:{ray.util.get_node_ip_address()}": 0.001}


def check_first_device(group: PlacementGroup, pool: Pool, resource: str, timeout_s: float) -> None:
    """
    Args:
        group: in which `pool` was set aside on this machine.

    Raises:
        ClusterError: the device that was set aside is another than the one that this process uses, its first.
    """
    manager = get_accelerator_manager_for_resource(resource)
    if manager is None:
        return
    variable = manager.get_visible_accelerator_ids_env_var()
    amount = pool.each[resource]
    looking = ray.remote(_value_of).options(
        num_cpus=0,
        num_gpus=amount if resource == "GPU" else 0,
        resources={} if resource == "GPU" else {resource: amount},
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
    )
    there = ray.get(looking.remote(variable), timeout=timeout_s)
    mine = (os.environ.get(variable) or "0").split(",")[0]
    if mine not in there.split(","):
        raise ClusterError(
            f"the cluster set aside {resource} {there} of this machine for the trainer, which would use {mine}: a "
            "worker could get the same one",
            remedy=f"run the command with {variable}={there}, or when nothing else runs on this machine",
        )


def _value_of(variable: str) -> str:
    return os.environ.get(variable, "")
