"""The launcher seam: where roles live. The trainer's code is the same under every launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

Role = TypeVar("Role")


@runtime_checkable
class Launcher(Protocol):
    name: str

    def start(self, role: str, factory: Callable[[], Role]) -> Role:
        """Build a role ('actor', 'rollout', 'reward', ...) where it belongs and return a handle with its interface."""
        ...

    def shutdown(self) -> None:
        """Stop only what this launcher started; safe to call twice."""
        ...
