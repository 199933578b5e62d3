"""Where a recipe's models and prompt sets are: 'builtin:NAME' inside the package, 'tiny:NAME' built when it is first
used, a folder, or the hub's id of a model that was downloaded before."""

from __future__ import annotations

import re
from pathlib import Path

import omni_portable
from omni_portable.config.convert import naming, suggest
from omni_portable.config.paths import user_path
from omni_portable.config.tiny import TINY, tiny_builder, tiny_folder, tiny_names, tiny_target
from omni_portable.contracts.errors import ConfigError, ModelError

BUILTIN = "builtin:"
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""ORGANISATION/MODEL, as the hub spells it."""


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


def check_source(path: str, key: str = "model.path", family: str = "") -> None:
    """Check a packaged or a tiny model by its name; nothing is built or read.

    Args:
        path: the value of `key`; other paths are not looked at.
        family: that the model must be of; '' takes any.

    Raises:
        ConfigError: there is none of that name, it is no model, or it is of another family.
    """
    if path.startswith(BUILTIN):
        with naming(f"{key}={path}"):
            folder = packaged(path.removeprefix(BUILTIN))
        if not any((folder / name).is_file() for name in ("model_index.json", "config.json")):
            raise ConfigError(f"{key}={path}: it is packaged with omni-portable, but it is no model")
    elif path.startswith(TINY):
        with naming(f"{key}={path}"):
            tiny_builder(path.removeprefix(TINY))
        of = path.removeprefix(TINY).partition("/")[0]
        if family and of != family:
            raise ConfigError(
                f"{key}={path} is a model of family '{of}', but model.family={family}",
                remedy=f"set {key} to a model of family '{family}'"
                + (f", or model.family={of}" if key == "model.path" else ""),
                choices=[TINY + name for name in tiny_names() if name.partition("/")[0] == family],
            )


def resolve_model_path(path: str) -> Path:
    """A model's folder: 'builtin:NAME' is a packaged model, 'tiny:NAME' one with random weights that is built offline,
    'ORGANISATION/MODEL' a download in the hub's cache unless there is such a folder, anything else a path ('~' is
    expanded). Nothing is downloaded.

    Whether the folder holds a model of the right family is the family's to say.

    Raises:
        ConfigError: an unknown builtin or tiny name, or a path where nobody can look.
        ModelError: an id of the hub that was not downloaded.
    """
    if path.startswith(BUILTIN):
        return packaged(path.removeprefix(BUILTIN))
    if path.startswith(TINY):
        return tiny_folder(path.removeprefix(TINY))
    folder = user_path(path, "model.path")
    return _downloaded(path) if HUB_ID.fullmatch(path) and not folder.exists() else folder


def find_model_path(path: str) -> Path | None:
    """As :func:`resolve_model_path`, but nothing is built, and None for a model that is not on this machine: a tiny one
    that was not built yet, a hub's id that was not downloaded, or a folder that does not exist.

    Raises:
        ConfigError: an unknown builtin or tiny name, or a path where nobody can look.
    """
    if path.startswith(TINY):
        folder = tiny_target(path.removeprefix(TINY))
    elif HUB_ID.fullmatch(path) and not user_path(path, "model.path").exists():
        if not _in_hub_cache(path):
            return None
        try:
            folder = _downloaded(path)
        except ModelError:  # a cache folder without a complete snapshot
            return None
    else:
        folder = resolve_model_path(path)
    return folder if folder.is_dir() else None


def _in_hub_cache(hub_id: str) -> bool:
    """Does the hub's cache have a folder for the model? Asked before the hub's library, which is slow to import."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}").is_dir()


def _downloaded(hub_id: str) -> Path:
    """The newest snapshot of a model in the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"model.path={hub_id}: there is no such folder, and no download of that name in the hub's cache",
            remedy=f"download it with 'hf download {hub_id}', or set model.path to the model's folder",
        ) from error
