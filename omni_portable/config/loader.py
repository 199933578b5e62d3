"""From a recipe and overrides to a validated :class:`RunConfig`; no torch, no model, no device is touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from omni_portable.config.assets import find_model_path, packaged, resolve_model_path
from omni_portable.config.compose import compose_recipe
from omni_portable.config.convert import Source, all_keys, build, join
from omni_portable.config.overrides import apply_overrides, parse_overrides
from omni_portable.config.plan import plan_text
from omni_portable.config.plugins import algorithm_options, plugin_options, scorer_options
from omni_portable.config.recipes import find_recipe, list_recipes, recipe_root
from omni_portable.config.schema import RunConfig
from omni_portable.config.spelled import spelled
from omni_portable.config.validate import validate
from omni_portable.contracts.errors import ConfigError

__all__ = [
    "algorithm_options",
    "find_model_path",
    "find_recipe",
    "list_recipes",
    "load_config",
    "packaged",
    "plan_text",
    "plugin_options",
    "read_config",
    "resolve_model_path",
    "scorer_options",
    "to_yaml",
]


def load_config(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Compose a recipe, apply overrides, check types, plugins and everything that can be checked without hardware.

    Args:
        recipe: path of a .yaml file, or the name of a packaged recipe.
        overrides: `key=value` texts in Hydra's grammar; later ones win.

    Raises:
        ConfigError: see the modules `compose`, `overrides`, `convert` and `validate` for the kinds.
    """
    path = find_recipe(recipe)
    parsed = parse_overrides(overrides)
    composed = compose_recipe(path)
    _check_packages(composed, path)
    merged = OmegaConf.merge(OmegaConf.create(dataclasses.asdict(RunConfig())), composed)
    assert isinstance(merged, DictConfig)
    apply_overrides(merged, parsed, RunConfig)
    typed = {override.key_or_group.replace("/", "."): override.input_line or "" for override in parsed}
    source = Source(typed, recipe, all_keys(RunConfig), spelled(path))
    data = _resolve(merged, path)
    data["recipe"] = recipe
    config = build(RunConfig, data, source=source)
    validate(config, source)
    return config


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML, in the schema's order; :func:`read_config` reads it back unchanged."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True, width=100)


def read_config(path: Path) -> RunConfig:
    """A configuration that :func:`to_yaml` wrote (`config.yaml` of a run directory): no composing, no defaults list.

    Types and keys are checked; that the plugins it names are installed here is not.

    Raises:
        ConfigError: the file is missing, damaged, or of another version of the schema.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    return build(RunConfig, data, source=Source(recipe=str(path)))


def _check_packages(composed: DictConfig, path: Path) -> None:
    """Hydra nests a recipe of another folder under the folder's name unless told otherwise: say how to tell it."""
    folders = {entry.name for entry in recipe_root().iterdir() if entry.is_dir()} if recipe_root().is_dir() else set()
    known = {field.name for field in dataclasses.fields(RunConfig)}
    for name in composed:
        if name in folders and name not in known:
            raise ConfigError(
                f"{path} extends a recipe of the folder '{name}' without saying where its keys go",
                remedy=f"in its defaults list write '- /{name}/RECIPE@_global_'",
            )


def _resolve(merged: DictConfig, path: Path) -> dict[str, Any]:
    """Plain data with `${...}` replaced; mandatory values that are missing stay '???'."""
    try:
        OmegaConf.resolve(merged)
        data = OmegaConf.to_container(merged)
    except (OmegaConfBaseException, RecursionError) as error:
        key = getattr(error, "full_key", "") or ", ".join(_interpolated(merged))
        problem = str(error).partition("\n")[0] or "it refers to itself"
        raise ConfigError(
            f"{path}: the value of '{key}' refers to something that cannot be resolved: {problem}",
            remedy="refer to other keys as ${section.key}; write a literal dollar sign as \\${",
        ) from error
    assert isinstance(data, dict)
    return {str(name): value for name, value in data.items()}


def _interpolated(node: Any, key: str = "") -> list[str]:
    """Dotted keys of the texts that hold '${'."""
    data = OmegaConf.to_container(node) if isinstance(node, DictConfig) else node
    if isinstance(data, dict):
        return [found for name, value in data.items() for found in _interpolated(value, join(key, name))]
    return [key] if isinstance(data, str) and "${" in data else []
