"""Where recipes are: by path, or by name among those of a checkout or of the installed package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import omni_portable
from omni_portable.config.paths import user_path
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.spelling import bare, closest

SHOWN = 20
"""Recipes that an error lists at most."""
_PACKAGE = Path(omni_portable.__file__).resolve().parent


def recipe_root() -> Path:
    """The folder of packaged recipes: `omni_portable/recipes` once installed, `recipes/` in a checkout."""
    installed = _PACKAGE / "recipes"
    return installed if installed.is_dir() else _PACKAGE.parent / "recipes"


def list_recipes() -> list[str]:
    """Names ('family/recipe') of the packaged recipes; files that start with '_' are parts for others to extend."""
    root = recipe_root()
    return sorted(
        path.relative_to(root).with_suffix("").as_posix()
        for path in root.rglob("*.yaml")
        if not any(part.startswith("_") for part in path.relative_to(root).parts)
    )


def extended(path: Path, entry: object) -> list[Path]:
    """The files that an entry of the recipe's defaults list means: 'NAME' beside it, '/FAMILY/NAME@_global_' among the
    packaged ones, or {FOLDER: NAME}; none for '_self_'. They need not exist."""
    if isinstance(entry, Mapping):
        return [
            found
            for folder, names in entry.items()
            for name in (names if isinstance(names, list) else [names])
            for found in extended(path, f"{str(folder).removeprefix('optional ').partition('@')[0]}/{name}")
        ]
    name = str(entry).partition("@")[0]
    if name == "_self_":
        return []
    beside = path.parent / f"{name.lstrip('/')}.yaml"
    if not name.startswith("/"):
        return [beside.resolve()]
    return [beside.resolve() if beside.is_file() else (recipe_root() / f"{name.lstrip('/')}.yaml").resolve()]


def find_recipe(name: str) -> Path:
    """The recipe's file, from a path, a name ('sd3/flow_grpo_ocr_tiny'), or a name without its family where only one
    family has it. 'recipes/NAME.yaml' is understood away from a checkout too.

    Raises:
        ConfigError: there is no such recipe (the message lists those that may be meant), or the name is ambiguous.
    """
    path = user_path(name, "the recipe")
    if path.is_file():
        if path.suffix != ".yaml":
            raise ConfigError(f"the recipe '{name}' does not end in .yaml", remedy="rename the file")
        return path.resolve()
    known = list_recipes()
    wanted = name.removesuffix(".yaml").removeprefix("./").removeprefix("recipes/")
    if wanted in known:
        return recipe_root() / f"{wanted}.yaml"
    matches = [known_name for known_name in known if known_name.rsplit("/", 1)[-1] == wanted]
    if len(matches) == 1:
        return recipe_root() / f"{matches[0]}.yaml"
    if matches:
        raise ConfigError(f"several recipes are called '{name}'", remedy="add the family", choices=matches)
    problem = f"no recipe '{name}': there is no such file (from {Path.cwd()}) and no packaged recipe of that name"
    raise _unknown(f"'{name}' is a folder, not a recipe" if path.is_dir() else problem, wanted, known)


def _unknown(problem: str, wanted: str, known: Sequence[str]) -> ConfigError:
    """Lists the recipes whose names contain what was asked for, and otherwise the closest one; all only if few."""
    holding = [name for name in known if bare(wanted) in bare(name)]
    stems = {name.rsplit("/", 1)[-1]: name for name in known}
    near = holding or list(dict.fromkeys(stems.get(name, name) for name in closest(wanted, [*known, *stems])))
    shown = list(known) if len(known) <= SHOWN else near[:SHOWN]
    search = "`omni-portable recipes list WORD ...` searches names, summaries, sources and models"
    meant = f"did you mean '{near[0]}'? " if len(near) == 1 else ""
    more = f" ({len(near)} recipes have that in their name)" if len(near) > len(shown) else ""
    return ConfigError(problem, remedy=f"{meant}{search}{more}", choices=shown)
