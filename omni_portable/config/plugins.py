"""Sections of a recipe that belong to plugins: names are checked, keys typed by the plugin's options dataclass."""

from __future__ import annotations

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
    return build(spec.options, {k: v for k, v in section.items() if k not in reserved}, where, source)


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
