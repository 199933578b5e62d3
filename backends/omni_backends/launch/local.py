"""The embedded launcher: every role lives in this process. Loads without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from omni_portable.contracts.errors import LifecycleError
from omni_portable.contracts.registry import NoOptions, PluginSpec

Role = TypeVar("Role")

SPEC = PluginSpec(
    name="local",
    summary="runs every role in one process",
    target="omni_backends.launch.local:LocalLauncher",
    capabilities={"multi_process": False},
)


class LocalLauncher:
    """Builds roles in place; the handle of a role is the role itself."""

    name = "local"

    def __init__(self, options: NoOptions | None = None) -> None:
        self._roles: dict[str, object] = {}

    def start(self, role: str, factory: Callable[[], Role]) -> Role:
        """Build a role.

        Raises:
            LifecycleError: a role of this name is running.
        """
        if role in self._roles:
            raise LifecycleError(
                f"the role '{role}' was started before", remedy="shut the launcher down first, or use another name"
            )
        built = factory()
        self._roles[role] = built
        return built

    def shutdown(self) -> None:
        """Close the roles in reverse order of their start: those with a `close` method are asked to, all are let go."""
        while self._roles:
            _, role = self._roles.popitem()
            close = getattr(role, "close", None)
            if callable(close):
                close()
