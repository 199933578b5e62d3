"""What must be installed, in which versions; torch-free."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from omni_portable.contracts.errors import PluginError

PACKAGE, SUPPORTED = "veomni", SpecifierSet("==0.1.12")


def check_installed() -> None:
    """Raise PluginError where the package is missing or of another version."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        raise PluginError(
            f"train engine 'veomni' needs {PACKAGE} {SUPPORTED}, which is not installed",
            remedy=f"pip install '{PACKAGE}{SUPPORTED}'",
        ) from None
    if found not in SUPPORTED:
        raise PluginError(
            f"{PACKAGE} {found} is installed; train engine 'veomni' is written for {SUPPORTED}",
            remedy=f"pip install '{PACKAGE}{SUPPORTED}'",
        )
