"""Errors instead of crashes: a tensor whose memory is away must not be computed with, saved or overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import torch

from omni_portable.contracts.errors import LifecycleError


class Handle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None: ...


COPYING = {"__deepcopy__": "copy", "__reduce_ex__": "pickle"}
MOVING = {"_apply": "to"}
"""Methods that read or replace every tensor and that torch has no hook for -> how users know them. `_apply` is behind
to(), half(), cuda() and their like."""


def guard_module(module: torch.nn.Module, reason: str) -> list[Handle]:
    """Make forward, state_dict, load_state_dict, conversions and copies of the module and of its parts raise
    `LifecycleError`."""
    handles: list[Handle] = []
    for part in module.modules():
        name = type(part).__name__
        handles.append(part.register_forward_pre_hook(_refuse(f"{name}.forward", reason)))
        handles.append(part.register_state_dict_pre_hook(_refuse(f"{name}.state_dict", reason)))
        handles.append(part.register_load_state_dict_pre_hook(_refuse(f"{name}.load_state_dict", reason)))
        handles += _bars(part, MOVING | COPYING, reason)
    return handles


def guard_step(optimizer: torch.optim.Optimizer, reason: str) -> list[Handle]:
    """Make step() raise: it needs the parameters as well as the optimizer's own state."""
    return [optimizer.register_step_pre_hook(_refuse(f"{type(optimizer).__name__}.step", reason))]


def guard_state(optimizer: torch.optim.Optimizer, reason: str) -> list[Handle]:
    """Make state_dict, load_state_dict and copies raise."""
    name = type(optimizer).__name__
    return [
        optimizer.register_state_dict_pre_hook(_refuse(f"{name}.state_dict", reason)),
        optimizer.register_load_state_dict_pre_hook(_refuse(f"{name}.load_state_dict", reason)),
        *_bars(optimizer, COPYING, reason),
    ]


def remove(handles: Sequence[Handle]) -> None:
    """Take the guards away."""
    for handle in handles:
        handle.remove()


@dataclass
class _Barrier:
    """Stands in the place of one object's method for as long as a guard of it is left; what was there comes back."""

    replaced: object
    hooks: list[Callable[..., NoReturn]] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.hooks[-1]()


class _Bar:
    """One guard of a method without a hook; several may stand on one object, and go in any order."""

    def __init__(self, owner: object, method: str, hook: Callable[..., NoReturn]) -> None:
        self._attributes, self._method, self._hook = vars(owner), method, hook
        found = self._attributes.get(method)
        self._barrier = found if isinstance(found, _Barrier) else _Barrier(found)
        self._barrier.hooks.append(hook)
        self._attributes[method] = self._barrier

    def remove(self) -> None:
        self._barrier.hooks.remove(self._hook)
        if self._barrier.hooks:
            return
        if self._barrier.replaced is None:
            del self._attributes[self._method]
        else:
            self._attributes[self._method] = self._barrier.replaced


def _bars(owner: object, methods: dict[str, str], reason: str) -> list[Handle]:
    kind = type(owner).__name__
    return [_Bar(owner, method, _refuse(f"{kind}.{known}", reason)) for method, known in methods.items()]


def _refuse(call: str, reason: str) -> Callable[..., NoReturn]:
    def hook(*args: Any, **kwargs: Any) -> NoReturn:
        raise LifecycleError(f"{call}() was called while {reason}", remedy="call wake() first")

    return hook
