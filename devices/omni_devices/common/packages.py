"""Installed distributions against what is needed, read from package metadata; nothing is imported."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

from packaging.specifiers import SpecifierSet

from omni_portable.contracts.device import PackageNeed

Lookup = Callable[[str], str | None]
"""Distribution -> installed version, None where it is not installed."""

UNREADABLE = "of unreadable metadata"
"""Stands for the version of a distribution whose metadata is damaged; it satisfies no specifier."""

TORCH = PackageNeed("torch", "", "kernels that torch brings itself", "pip install torch")
"""Names the version of a kernel whose row asks for no package."""


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    except UnicodeDecodeError:
        return UNREADABLE


def problem(need: PackageNeed, lookup: Lookup) -> str:
    """What is wrong with the installed distribution, as a clause ('it needs ...'); empty where it is right."""
    found = lookup(need.distribution)
    if found is None:
        return f"it needs {need.distribution}{need.specifier}, which is not installed"
    if not SpecifierSet(need.specifier).contains(found, prereleases=True):
        return f"it needs {need.distribution}{need.specifier}, but {found} is installed"
    return ""


def described(need: PackageNeed, lookup: Lookup | None) -> str:
    """'torch 2.13.0' as installed; 'torch>=2.10' where nobody looks."""
    found = lookup(need.distribution) if lookup else None
    return f"{need.distribution} {found}" if found else f"{need.distribution}{need.specifier}"
