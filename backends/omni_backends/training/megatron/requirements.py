"""What must be installed, in which versions; torch-free."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from omni_backends.training.megatron.options import MegatronOptions
from omni_portable.contracts.errors import PluginError

PACKAGE, SUPPORTED = "megatron-core", SpecifierSet(">=0.16.1,<0.17")


def check_installed(options: MegatronOptions) -> None:
    """Raise PluginError where a package is missing or of another version."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        raise PluginError(
            f"train engine 'megatron' needs {PACKAGE} {SUPPORTED}, which is not installed",
            remedy=f"pip install '{PACKAGE}{SUPPORTED}'",
        ) from None
    if found not in SUPPORTED:
        raise PluginError(
            f"{PACKAGE} {found} is installed; train engine 'megatron' is written for {SUPPORTED}",
            remedy=f"pip install '{PACKAGE}{SUPPORTED}'",
        )
    if options.layers == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        raise PluginError(
            "actor.options.layers='transformer_engine' needs the package transformer-engine, which is not installed",
            remedy="install it for your accelerator, or set actor.options.layers=megatron",
        )
