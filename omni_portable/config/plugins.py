"""Sections of a recipe that belong to plugins: names are checked, keys typed by the plugin's options dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from omni_portable.config.convert import Source, build, show, suggest
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.media import LAYOUTS
from omni_portable.contracts.registry import PluginSpec

RESERVED: Mapping[str, tuple[str, ...]] = {"algorithm": ("name",), "reward": ("kind", "weight")}
"""Keys that a section holds beside the options of its plugin, by kind of plugin."""
CHOSEN_BY: Mapping[str, str] = {
    "rollout_engine": "rollout.engine",
    "train_engine": "actor.engine",
    "data_plane": "dataplane.name",
    "launcher": "launcher.name",
}
"""Key that chooses the plugin, for kinds of which another one may have an option that the chosen one lacks."""


def plugin_spec(kind: str, name: str, key: str) -> PluginSpec:
    """The spec of the plugin that the configuration names under `key`.

    Args:
        kind: a key of :data:`omni_portable.contracts.registry.GROUPS`.

    Raises:
        ConfigError: nobody registered the name; names the key, the closest names and all valid ones.
        PluginError: the plugin is registered but broken.
    """
    known = registry.names(kind)
    if not isinstance(name, str):
        raise ConfigError(f"{key}={show(name)}: it must be a text, a name of these", choices=known)
    if name not in known:
        raise ConfigError(
            f"{key}={name}: no {kind.replace('_', ' ')} of that name is installed",
            remedy=suggest(name, known) or "install the package that registers it",
            choices=known,
        )
    return registry.spec(kind, name)


def gives_samples(config: RunConfig) -> bool:
    """Whether the rollout engine takes training samples from the dataset (validation is drawn either way)."""
    spec = plugin_spec("rollout_engine", config.rollout.engine, "rollout.engine")
    return bool(spec.capabilities.get("given_samples"))


def engines_that_give() -> list[str]:
    """Rollout engines that take training samples from the dataset."""
    names = registry.names("rollout_engine")
    return [name for name in names if registry.spec("rollout_engine", name).capabilities.get("given_samples")]


def declared_modality(kind: str, options: Any) -> str:
    """The modality that a scorer's spec declares for an artifact: by its name, or by that of an option that says it."""
    return kind if kind in LAYOUTS else str(getattr(options, kind, kind))


def plugin_options(
    kind: str, name: str, section: Mapping[str, Any], *, key: str = "", source: Source | None = None
) -> Any:
    """An instance of the plugin's options dataclass from its section of the configuration.

    Args:
        section: keys and values; reserved keys ('name' of the algorithm, 'kind' and 'weight' of a scorer) are skipped.
        key: dotted path of the section, for messages.

    Raises:
        ConfigError: unknown plugin, unknown key, wrong type, or a mandatory option that is missing.
    """
    where = key or kind
    spec = plugin_spec(kind, name, where)
    reserved = RESERVED.get(kind, ())
    _check_owner(kind, name, section, where, source or Source())
    return build(spec.options, {k: v for k, v in section.items() if k not in reserved}, where, source)


def _check_owner(kind: str, name: str, section: Mapping[str, Any], where: str, source: Source) -> None:
    """Say whose an option is that this plugin lacks and another one of its kind has.

    Raises:
        ConfigError: names the plugin that has the option, and the key that chooses it.
    """
    if kind not in CHOSEN_BY or not isinstance(section, Mapping):
        return
    names = _option_names(kind, name)
    for option in (each for each in section if each not in names):
        owners = [each for each in registry.names(kind) if option in _option_names(kind, each)]
        if owners:
            key = f"{where}.{option}"
            raise ConfigError(
                f"{source.describe(key, section[option])}: {CHOSEN_BY[kind]}={name} has no such option",
                remedy=f"set {CHOSEN_BY[kind]}={' or '.join(owners)}, which has it, or leave it out",
                choices=[f"{where}.{each}" for each in names],
            )


def _option_names(kind: str, name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(registry.spec(kind, name).options)]


def algorithm_name(config: RunConfig, source: Source | None = None) -> str:
    """`algorithm.name`, which every recipe must give."""
    name = config.algorithm.get("name")
    if name is None or name == "???":
        raise ConfigError("'algorithm.name' has no value", remedy="set it", choices=registry.names("algorithm"))
    plugin_spec("algorithm", name, "algorithm.name")
    return str(name)


def algorithm_options(config: RunConfig, source: Source | None = None) -> Any:
    """The options object of the run's algorithm."""
    name = algorithm_name(config)
    return plugin_options("algorithm", name, config.algorithm, key="algorithm", source=source)


def scorer_options(config: RunConfig, scorer: str, source: Source | None = None) -> Any:
    """The options object of one scorer of the reward."""
    section = config.reward.scorers[scorer]
    return plugin_options("reward", section["kind"], section, key=f"reward.scorers.{scorer}", source=source)
