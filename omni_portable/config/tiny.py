"""Tiny models of a family with random weights, built offline on first use: `model.path: tiny:FAMILY[/VARIANT]`.

A family's spec names its builders under the capability 'tiny': 'module:function', or a mapping VARIANT -> that, with ''
for the one without a variant. The function is called with the path to make and returns nothing that is used here; its
module is imported only when a folder has to be made.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from omni_portable.config.convert import suggest
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError

TINY = "tiny:"
CACHE_VARIABLE = "OMNI_PORTABLE_CACHE"
"""Environment variable that moves the cache."""
_LIBRARIES = ("torch", "diffusers", "transformers")


def tiny_builder(name: str) -> str:
    """'module:function' that builds `name` (FAMILY or FAMILY/VARIANT).

    Raises:
        ConfigError: no such family, or one without a tiny model of that name; lists those that exist.
    """
    known = _builders()
    if name not in known:
        raise ConfigError(
            f"there is no tiny model '{name}'", remedy=suggest(name, sorted(known)), choices=[TINY + n for n in known]
        )
    return known[name]


def tiny_names() -> list[str]:
    """FAMILY or FAMILY/VARIANT of every tiny model, sorted."""
    return sorted(_builders())


def tiny_folder(name: str) -> Path:
    """The folder of a tiny model, from the cache or built there now.

    A folder belongs to the builder's source and the libraries' versions: when these change, another is built. Processes
    that build the same one at once do not disturb each other.

    Raises:
        ConfigError: an unknown name, or a cache that cannot be written.
    """
    target, folder = tiny_builder(name), tiny_target(name)
    if folder.is_dir():
        return folder
    module, _, function = target.partition(":")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder.parent} cannot be written: {error.strerror}",
            remedy=f"set the environment variable {CACHE_VARIABLE} to a folder of yours",
        ) from error
    try:
        getattr(importlib.import_module(module), function)(building / "model")
        _publish(building / "model", folder)
    finally:
        shutil.rmtree(building)
    return folder


def tiny_target(name: str) -> Path:
    """Where :func:`tiny_folder` has or will have the folder; nothing is built.

    Raises:
        ConfigError: an unknown name.
    """
    target = tiny_builder(name)
    return cache_root() / "tiny" / f"{name.replace('/', '-')}-{_fingerprint(target)}"


def cache_root() -> Path:
    """Where omni-portable keeps what it can make again: $OMNI_PORTABLE_CACHE, $XDG_CACHE_HOME/omni-portable, or
    ~/.cache/omni-portable."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "omni-portable"


def _builders() -> dict[str, str]:
    found: dict[str, str] = {}
    for family in registry.names("model"):
        tiny = registry.spec("model", family).capabilities.get("tiny", {})
        variants: Mapping[str, str] = {"": tiny} if isinstance(tiny, str) else tiny
        found |= {f"{family}/{variant}" if variant else family: target for variant, target in variants.items()}
    return found


def _fingerprint(target: str) -> str:
    """Hash of the target, of the sources in the folder above its module's (all families, what they share), and of the
    libraries."""
    spec = importlib.util.find_spec(target.partition(":")[0])
    digest = hashlib.blake2b(target.encode(), digest_size=6)
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        for file in sorted(folder.parent.rglob("*.py")):
            digest.update(file.relative_to(folder.parent).as_posix().encode() + file.read_bytes())
    for library in _LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    return digest.hexdigest()


def _publish(built: Path, folder: Path) -> None:
    """Rename into place; where another process was first, its equal folder stays."""
    try:
        built.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
