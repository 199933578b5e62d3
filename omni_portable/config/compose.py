"""Recipes as Hydra composes them: the defaults list, then the recipe's own keys; interpolations stay unresolved."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from omni_portable.config.quoting import quote_value
from omni_portable.config.recipes import extended, recipe_root
from omni_portable.contracts.errors import ConfigError

HYDRA_VERSION_BASE = "1.3"


def compose_recipe(path: Path) -> DictConfig:
    """The merged content of a recipe file.

    A recipe extends others with Hydra's defaults list: ``- NAME`` is a file beside it, ``- /family/NAME@_global_`` one
    of the packaged recipes. Its own keys win when the list ends in ``_self_``.

    Raises:
        ConfigError: the file cannot be read, is no YAML mapping, or extends something that does not exist, or itself.
    """
    _check_readable(path)
    _refuse_circle(path, ())
    search = quote_value(f"file://{recipe_root()}")
    try:
        with initialize_config_dir(config_dir=str(path.parent), version_base=HYDRA_VERSION_BASE):
            composed = compose(path.stem, overrides=[f"hydra.searchpath=[{search}]"])
    except yaml.YAMLError as error:
        raise ConfigError(f"a recipe that {path} extends is not valid YAML: {_one_line(error)}") from error
    except MissingConfigException as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(
            f"{path} extends a recipe that does not exist: {problem}",
            remedy="in its defaults list write '- NAME' for a recipe in the same folder, "
            "'- /family/NAME@_global_' for a packaged one",
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be composed: recipes that it extends extend each other") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be composed: {_one_line(error)}") from error
    OmegaConf.set_struct(composed, False)
    return composed


def _check_readable(path: Path) -> None:
    """Find what is wrong with the file itself first, since Hydra's own messages do not say."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the recipe {path} is not UTF-8 text", remedy="save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}", remedy=_yaml_hint(path)) from error
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__} where a recipe has 'key: value' lines")


def _refuse_circle(path: Path, chain: tuple[Path, ...]) -> None:
    """Find a recipe that extends itself, also by way of others: Hydra follows it until the stack overflows.

    What is wrong with the files in another way is left to Hydra.
    """
    if path in chain:
        names = [each.name for each in (*chain[chain.index(path) :], path)]
        raise ConfigError(
            f"{path} extends itself: {' -> '.join(names)}",
            remedy=f"remove one of them from the defaults list of {chain[-1]}",
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    entries = content.get("defaults") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        for other in extended(path, entry):
            _refuse_circle(other, (*chain, path))


def _one_line(error: Exception) -> str:
    return re.sub(r"\s*\n\s*", "; ", str(error).strip())


def _yaml_hint(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return "indent with spaces: the file holds a tab" if "\t" in text else "look at the line named above"
