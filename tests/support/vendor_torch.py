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

REAL_DEVICE = torch.device

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
            cleanup.enter_context(mock.patch.object(torch, "device", _device_class("npu")))
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


class _Named(type):
    """`isinstance(x, torch.device)` holds for real devices and for stand-ins while `torch.device` is replaced."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL_DEVICE | PrivateDevice)


class PrivateDevice:
    """`torch.device('npu', 1)` without a backend: it has a type and an index, and no tensor can be put on it."""

    def __init__(self, kind: str, index: int | None) -> None:
        self.type, self.index = kind, index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrivateDevice) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    __repr__ = __str__


def _device_class(name: str) -> type:
    """A `torch.device` that also knows the private name.

    Registering the name with torch would last for the process, and change what later tests find: torch would then look
    for an accelerator of that name wherever it asks for the current one.
    """

    class Device(metaclass=_Named):
        def __new__(cls, kind: Any, index: int | None = None) -> Any:
            text, _, number = str(kind).partition(":")
            if text != name:
                return REAL_DEVICE(kind) if index is None else REAL_DEVICE(kind, index)
            return PrivateDevice(name, int(number) if number else index)

    return Device
