"""Files that come inside the package: the tiny models and prompt sets that recipes name as 'builtin:NAME'."""

from __future__ import annotations

from pathlib import Path

import omni_portable
from omni_portable.config.convert import suggest
from omni_portable.config.paths import user_path
from omni_portable.contracts.errors import ConfigError

BUILTIN = "builtin:"


def assets_root() -> Path:
    return Path(omni_portable.__file__).resolve().parent / "assets"


def packaged(name: str) -> Path:
    """The packaged file or folder `name` (relative to `omni_portable/assets`).

    Raises:
        ConfigError: there is none; the message lists those that exist.
    """
    path = user_path(str(assets_root() / name), f"{BUILTIN}{name}")
    if not path.exists() or assets_root() not in path.resolve().parents:
        known = [entry.name for entry in sorted(assets_root().iterdir()) if not entry.name.startswith(("_", "."))]
        raise ConfigError(
            f"nothing called '{name}' is packaged with omni-portable", remedy=suggest(name, known), choices=known
        )
    return path


def resolve_model_path(path: str) -> Path:
    """A model's folder: 'builtin:NAME' is a packaged model, anything else a path ('~' is expanded).

    Whether the folder holds a model of the right family is the family's to say.

    Raises:
        ConfigError: an unknown builtin name, or a path where nobody can look.
    """
    if path.startswith(BUILTIN):
        return packaged(path.removeprefix(BUILTIN))
    return user_path(path, "model.path")
