"""torch's own functions of an accelerator, patched on the real modules for as long as a simulation lasts."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from tests.support.vendor_modules import Simulation

LIBRARIES = frozenset(("torch", "diffusers", "transformers", "accelerate", "peft", "torchgen"))
"""Callers who get the real function where a test gives no behaviour: libraries ask torch about devices at any time."""

GUARDED = "torch.cuda"
"""The module whose functions need a device, so that a test has to say what each does."""


@contextmanager
def patched_torch(simulation: Simulation) -> Iterator[None]:
    """Behaviours for names of installed packages on the real modules, and strictness for `torch.cuda`.

    Raises:
        AttributeError: a behaviour for a name that does not exist.
    """
    with ExitStack() as cleanup:
        if GUARDED in simulation.records and simulation.stack in ("cuda", "rocm"):
            _guard(cleanup, simulation, importlib.import_module(GUARDED), simulation.records[GUARDED]["members"])
        for name, value in simulation.real_behaviours.items():
            owner, attribute = _owner(name)
            cleanup.enter_context(mock.patch.object(owner, attribute, _replacement(simulation, name, owner, value)))
        if "torch.npu" in simulation.modules:
            _name_private_backend("npu")
            cleanup.enter_context(mock.patch.object(torch, "npu", simulation.modules["torch.npu"], create=True))
        yield


def _guard(cleanup: ExitStack, simulation: Simulation, module: ModuleType, members: Mapping[str, Any]) -> None:
    """Make functions that a test gave no behaviour fail, unless a library calls them."""
    for name, record in members.items():
        path = f"{module.__name__}.{name}"
        real = getattr(module, name, None)
        if record["kind"] == "function" and inspect.isroutine(real) and path not in simulation.real_behaviours:
            guard = _guarded(path, real)
            cleanup.enter_context(mock.patch.object(module, name, guard))


def _guarded(path: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.partition(".")[0] in LIBRARIES:
            return real(*args, **kwargs)
        raise AssertionError(f"{path}() was called, but the test gives it no behaviour")

    return call


def _owner(name: str) -> tuple[Any, str]:
    """The module or class that holds a name, and the last part of the name."""
    parts = name.split(".")
    owner: Any = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:-1], 2):
        if not hasattr(owner, part):
            importlib.import_module(".".join(parts[:depth]))
        owner = getattr(owner, part)
    if not hasattr(owner, parts[-1]):
        raise AttributeError(f"{parts[0]} {version(parts[0])} has no '{name}'")
    return owner, parts[-1]


def _replacement(simulation: Simulation, name: str, owner: Any, value: Any) -> Any:
    real = getattr(owner, name.rpartition(".")[2])
    if not inspect.isroutine(real):
        return value
    if not callable(value):
        raise TypeError(f"{name} is a function: its behaviour must be callable")
    signature = _signature(real)

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name}{signature}: {error}") from error
        simulation.calls.append((name, args, kwargs))
        return value(*args, **kwargs)

    return call


def _signature(real: Callable[..., Any]) -> inspect.Signature | None:
    """None where compiled code does not tell."""
    try:
        return inspect.signature(real)
    except (ValueError, TypeError):
        return None


def _name_private_backend(name: str) -> None:
    """Let `torch.device('npu')` parse. torch takes one name a process and keeps it, and from then on asks the module of
    that name which devices there are: one that knows of none stays behind, so that later tests find a plain CPU."""
    if torch._C._get_privateuse1_backend_name() == "privateuseone":
        torch.utils.rename_privateuse1_backend(name)
        absent: Any = ModuleType(f"torch.{name}")
        absent.is_available = absent.is_initialized = absent._is_in_bad_fork = lambda: False
        absent.device_count = lambda: 0
        absent.manual_seed_all = lambda seed: None
        setattr(torch, name, absent)
