"""The embedded launcher: every role lives in this process. Loads without torch."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from omni_portable.contracts.errors import LifecycleError, OmniPortableError
from omni_portable.contracts.launcher import Role
from omni_portable.contracts.registry import NoOptions, PluginSpec

SPEC = PluginSpec(
    name="local",
    summary="runs every role in one process",
    target="omni_backends.launch.local:LocalLauncher",
    capabilities={"multi_process": False},
)


def builder(role: Role) -> Callable[..., Any]:
    """The function that a role is built by."""
    module, _, function = role.build.partition(":")
    built: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return built


class LocalLauncher:
    """Builds roles in place; the handle of a role is the role itself."""

    name = "local"

    def __init__(self, options: NoOptions | None = None) -> None:
        self._roles: dict[str, object] = {}

    def reserve(self, roles: Sequence[Role]) -> None:
        """There is room for everything that fits into this process."""

    def start(self, role: Role) -> Any:
        """Build a role.

        Raises:
            LifecycleError: a role of this name and replica is running.
        """
        if role.label in self._roles:
            raise LifecycleError(
                f"the role '{role.label}' was started before", remedy="stop it first, or use another replica"
            )
        built = builder(role)(role.config, **role.arguments, **role.here)
        self._roles[role.label] = built
        return built

    def stop(self, role: Role) -> None:
        """Close a role where it has a `close`, and let it go."""
        _close(self._roles.pop(role.label, None))

    async def lost(self) -> OmniPortableError:
        """Never: what the roles live on is this process."""
        never: asyncio.Future[OmniPortableError] = asyncio.get_running_loop().create_future()
        return await never

    def shutdown(self) -> None:
        """Close the roles in reverse order of their start: those with a `close` method are asked to, all are let go."""
        while self._roles:
            _close(self._roles.popitem()[1])


def _close(role: object) -> None:
    close = getattr(role, "close", None)
    if callable(close):
        close()
