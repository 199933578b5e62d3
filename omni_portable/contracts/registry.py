"""Plugins by entry point: the only way from a name in a recipe to code.

An entry point names a :class:`PluginSpec`, a description that costs nothing to import (no torch, no vendor module).
Configuration and planning read specs; only the run itself calls :meth:`PluginSpec.load`. In-tree parts use the same
entry points as third-party packages, so there is no second path to keep right.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from omni_portable.contracts.errors import PluginError
from omni_portable.contracts.spelling import did_you_mean

GROUPS = {
    "device": "omni_portable.devices",
    "train_engine": "omni_portable.train_engines",
    "rollout_engine": "omni_portable.rollout_engines",
    "data_plane": "omni_portable.data_planes",
    "launcher": "omni_portable.launchers",
    "model": "omni_portable.models",
    "algorithm": "omni_portable.algorithms",
    "reward": "omni_portable.rewards",
    "logger": "omni_portable.loggers",
}
"""Kind of plugin -> entry-point group."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a plugin that has none."""


@dataclass(frozen=True)
class PluginSpec:
    """What may be known about a plugin without loading it.

    Args:
        name: the name used in recipes.
        summary: one line for `--help` and generated docs.
        target: ``module:attribute`` of the class or factory; imported only by :meth:`load`.
        options: dataclass whose fields are the keys a recipe may set for this plugin; must import without torch.
        capabilities: facts that are checked when plugins are paired (see each contract for the keys).
        extra: the optional dependencies of its package without which it is registered, but cannot be loaded.
    """

    name: str
    summary: str
    target: str
    options: type = NoOptions
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    extra: str = ""

    def load(self) -> Any:
        """Import and return the class or factory behind this spec; an ImportError names what is missing."""
        module_name, _, attribute = self.target.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            raise PluginError(
                f"plugin '{self.name}' ({self.target}) needs the module '{error.name}', which is not installed",
                remedy=f"pip install 'omni-portable[{self.extra}]'"
                if self.extra
                else f"pip install the package that provides '{error.name}' (see the extras in pyproject.toml)",
            ) from error


@functools.cache
def _entry_points(kind: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUPS[kind]):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise PluginError(
                f"two packages register the {kind} '{point.name}': {other.value} and {point.value}",
                remedy="uninstall one of them",
            )
        found[point.name] = point
    return found


def names(kind: str) -> list[str]:
    """Sorted names registered for a kind of plugin (a key of :data:`GROUPS`)."""
    return sorted(_entry_points(kind))


def spec(kind: str, name: str) -> PluginSpec:
    """The spec registered under `name`.

    Raises:
        PluginError: nobody registered the name (the message lists those that exist), or the entry point is broken.
    """
    points = _entry_points(kind)
    if name not in points:
        hint = did_you_mean(name, sorted(points)) or "install a package that registers it"
        raise PluginError(f"unknown {kind} '{name}'", remedy=hint, choices=sorted(points))
    try:
        loaded = points[name].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"the {kind} '{name}' is registered as {points[name].value}, which cannot be imported: {error}",
            remedy="reinstall the package that registers it",
        ) from error
    if not isinstance(loaded, PluginSpec):
        raise PluginError(f"the {kind} '{name}' is registered as {points[name].value}, which is no PluginSpec")
    return loaded


def load(kind: str, name: str) -> Any:
    """Shorthand for ``spec(kind, name).load()``."""
    return spec(kind, name).load()
