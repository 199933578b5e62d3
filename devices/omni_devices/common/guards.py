"""Errors instead of crashes: a tensor whose memory is away must not be computed with, saved or overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import torch

from omni_portable.contracts.errors import LifecycleError


class Handle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None: ...


def guard_module(module: torch.nn.Module, reason: str) -> list[Handle]:
    """Make forward, state_dict and load_state_dict of the module and of its parts raise `LifecycleError`."""
    handles: list[Handle] = []
    for part in module.modules():
        name = type(part).__name__
        handles.append(part.register_forward_pre_hook(_refuse(f"{name}.forward", reason)))
        handles.append(part.register_state_dict_pre_hook(_refuse(f"{name}.state_dict", reason)))
        handles.append(part.register_load_state_dict_pre_hook(_refuse(f"{name}.load_state_dict", reason)))
    return handles


def guard_step(optimizer: torch.optim.Optimizer, reason: str) -> list[Handle]:
    """Make step() raise: it needs the parameters as well as the optimizer's own state."""
    return [optimizer.register_step_pre_hook(_refuse(f"{type(optimizer).__name__}.step", reason))]


def guard_state(optimizer: torch.optim.Optimizer, reason: str) -> list[Handle]:
    """Make state_dict and load_state_dict raise."""
    name = type(optimizer).__name__
    return [
        optimizer.register_state_dict_pre_hook(_refuse(f"{name}.state_dict", reason)),
        optimizer.register_load_state_dict_pre_hook(_refuse(f"{name}.load_state_dict", reason)),
    ]


def remove(handles: Sequence[Handle]) -> None:
    """Take the guards away."""
    for handle in handles:
        handle.remove()


def _refuse(call: str, reason: str) -> Callable[..., NoReturn]:
    def hook(*args: Any, **kwargs: Any) -> NoReturn:
        raise LifecycleError(f"{call}() was called while {reason}", remedy="call wake() first")

    return hook
