"""Rollout replicas on the devices of the actor's ranks: when that is asked for, and what it needs. Torch-free.

Capabilities that are read here: 'rank_processes' of a train engine, 'multi_process' of a launcher, and of a rollout
engine 'devices_option', the name of its option that says on how many devices one replica works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_portable.config.plugins import plugin_options, plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import ConfigError


def rank_processes(config: RunConfig) -> int:
    """Processes that the train engine works in beside the trainer's; 0 where it works in that one."""
    spec = plugin_spec("train_engine", config.actor.engine, "actor.engine")
    return config.actor.world_size if spec.capabilities.get("rank_processes") else 0


def beside_ranks(config: RunConfig) -> bool:
    """Does every rollout replica share the device of a rank of the actor?

    So it is where the actor has ranks, and a launcher of several processes gives rollout no devices of its own (its
    option `rollout_devices` is 0).
    """
    launcher = plugin_spec("launcher", config.launcher.name, "launcher.name")
    if not launcher.capabilities.get("multi_process") or not rank_processes(config):
        return False
    options = plugin_options("launcher", config.launcher.name, config.launcher.options, key="launcher.options")
    return getattr(options, "rollout_devices", None) == 0


def engine_devices(engine: str, options: Mapping[str, Any]) -> int:
    """Devices that one rollout engine works on, as the option says that it declares for that (`devices_option`); 1
    where it declares none.

    Args:
        engine / options: rollout.engine and rollout.options.
    """
    built = plugin_options("rollout_engine", engine, options, key="rollout.options")
    option = plugin_spec("rollout_engine", engine, "rollout.engine").capabilities.get("devices_option")
    return int(getattr(built, option)) if option else 1


def check_colocation(config: RunConfig) -> None:
    """Refuse replicas that find no rank to share a device with.

    Raises:
        ConfigError: more replicas than ranks; an engine of several devices.
    """
    if not beside_ranks(config):
        return
    ranks, replicas = rank_processes(config), config.rollout.replicas
    if replicas > ranks:
        raise ConfigError(
            f"rollout.replicas={replicas}: with launcher.options.rollout_devices=0 every replica shares the device of "
            f"a rank, and actor.world_size={ranks}",
            remedy=f"set rollout.replicas={ranks}, or launcher.options.rollout_devices=1 for devices of their own",
        )
    device = config.device.name.partition(":")[0]
    counted = device == "auto" or plugin_spec("device", device, "device.name").capabilities.get("accelerator")
    if (size := engine_devices(config.rollout.engine, config.rollout.options)) > 1 and counted:
        raise ConfigError(
            f"rollout.engine={config.rollout.engine} works on {size} devices, and with "
            "launcher.options.rollout_devices=0 every replica shares the one device of a rank",
            remedy=f"set launcher.options.rollout_devices={size} for devices of their own, or replicas of one device",
        )
