"""Skipping tests of engines whose packages are not installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omni_portable.contracts.errors import PluginError


def require_supported(check: Callable[[], None]) -> None:
    """Skip the calling test module where an engine's own check says that its package is missing or of another version
    (nothing is imported)."""
    try:
        check()
    except PluginError as error:
        pytest.skip(error.problem, allow_module_level=True)
