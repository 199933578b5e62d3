"""Do the recipe's parts run on the device, and on how many of them? Specs are read, nothing is loaded.

Capabilities that are read here, all optional (a part that does not declare one is not restricted by it):

* any plugin: 'devices', those it runs on, by name, with or without a generation ('cpu', 'ascend:a3')
* rollout engine: 'sleep_levels', 'requires' (distribution -> versions that it runs with)
* train engine: 'ranks' (processes it may have), 'sharded' (True: weights and optimizer are spread over all devices)
* launcher: 'multi_process'
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from omni_portable.config.plugins import algorithm_name, plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.models.companions import check_companions
from omni_portable.models.extents import check_extents
from omni_portable.planning.plan import Devices, Reason
from omni_portable.planning.target import Target


def parts(config: RunConfig) -> Iterator[tuple[str, PluginSpec]]:
    """Key and spec of every plugin that a recipe names."""
    yield "model.family", plugin_spec("model", config.model.family, "model.family")
    yield "algorithm.name", plugin_spec("algorithm", algorithm_name(config), "algorithm.name")
    yield "actor.engine", plugin_spec("train_engine", config.actor.engine, "actor.engine")
    yield "rollout.engine", plugin_spec("rollout_engine", config.rollout.engine, "rollout.engine")
    yield "dataplane.name", plugin_spec("data_plane", config.dataplane.name, "dataplane.name")
    yield "launcher.name", plugin_spec("launcher", config.launcher.name, "launcher.name")
    for name, section in config.reward.scorers.items():
        key = f"reward.scorers.{name}.kind"
        yield key, plugin_spec("reward", section["kind"], key)


def unsupported(config: RunConfig, target: Target) -> Iterator[Reason]:
    """Parts that do not run on the target, and what an engine cannot do."""
    for key, spec in parts(config):
        devices = spec.capabilities.get("devices")
        if devices is not None and not {target.name, target.where} & set(devices):
            yield Reason(
                key,
                f"{key}={spec.name} does not run on '{target.where}'",
                f"set {key} to another one, or plan for one of the choices",
                tuple(devices),
            )
    yield from _other_versions(config, target)
    for key, check in (("rollout.height", check_extents), ("model.teachers", check_companions)):
        try:
            check(config)
        except ConfigError as error:
            yield Reason(key, error.problem, error.remedy or "", tuple(error.choices or ()))


def _other_versions(config: RunConfig, target: Target) -> Iterator[Reason]:
    """Where a package of the device's stack plugs into a release that the rollout engine refuses."""
    engine = plugin_spec("rollout_engine", config.rollout.engine, "rollout.engine")
    requires = engine.capabilities.get("requires", {})
    for package in target.profile.packages:
        name, _, release = package.serves.partition("==")
        if release and name in requires and release not in SpecifierSet(requires[name]):
            yield Reason(
                "rollout.engine",
                f"rollout.engine={engine.name} runs with {name} {requires[name]}, and the newest known "
                f"{package.distribution} of '{target.where}' serves {name} {release}",
                "set rollout.engine=native, until there is one for that version",
                ("native",),
            )


def can_sleep(config: RunConfig, level: int) -> bool:
    """Does the recipe's rollout engine offer the level? One that declares none is not restricted."""
    levels = plugin_spec("rollout_engine", config.rollout.engine, "rollout.engine").capabilities.get("sleep_levels")
    return level == 0 or levels is None or level in levels


def is_sharded(config: RunConfig) -> bool:
    """Does the train engine spread weights and optimizer state over its devices?"""
    return bool(plugin_spec("train_engine", config.actor.engine, "actor.engine").capabilities.get("sharded"))


def device_use(config: RunConfig, asked: int) -> tuple[Devices, list[Reason]]:
    """How many of `asked` devices the recipe's engines and launcher use, and a warning where some would idle."""
    engine = plugin_spec("train_engine", config.actor.engine, "actor.engine").capabilities
    launcher = plugin_spec("launcher", config.launcher.name, "launcher.name").capabilities
    limits = {}
    if (ranks := engine.get("ranks")) is not None:
        limits[f"actor.engine={config.actor.engine} trains in {ranks} process{'' if ranks == 1 else 'es'}"] = int(ranks)
    if launcher.get("multi_process") is False:
        limits[f"launcher.name={config.launcher.name} runs every role in one process"] = 1
    used = min([asked, *limits.values()])
    if used == 1:
        use = "one device holds every role"
    elif is_sharded(config):
        use = (
            f"the actor's weights, gradients and optimizer state are sharded over {used} devices; the rollout engine "
            "and frozen parts are replicated on each"
        )
    else:
        use = f"{used} data-parallel replicas: every device holds all of every role, samples are divided"
    if used == asked:
        return Devices(asked, used, use), []
    why = " and ".join(limit for limit, count in limits.items() if count < asked)
    warning = Reason("devices", f"{used} of {asked} devices would be used: {why}", f"plan with --devices {used}")
    return Devices(asked, used, use), [warning]
