"""Vendor packages that are not installed here, simulated from the signatures of the real ones.

    with simulate({"torch_npu.npu.get_soc_version": lambda: 225}, stack="ascend"):
        ...

Modules are built from `tests/contracts/signatures/<stack>.json`, which `ci/check_vendor_contracts.py` extracts from the
vendors' own wheels. They are strict: an attribute that the real module lacks raises AttributeError, arguments that the
real function does not take raise TypeError, and a function that the test gave no behaviour raises AssertionError. On
leaving, everything is as before.

Behaviours, by dotted name:

- a function: a callable, called with what our code passed (the real signature is checked first);
- a class: a callable for its constructor; `Class.method` for methods of instances made by it;
- an attribute: its value ('torch.version.hip': '7.0');
- a module: None (importing it raises ModuleNotFoundError) or an exception (importing it raises that).

What a function returns is held to its own signatures where the real function says which class it returns: with
`"vllm.device_allocator.cumem.CuMemAllocator.get_instance": lambda: fake`, calls of `fake` are checked too.
Names of installed packages (torch, diffusers, transformers) are patched after the real object's own signature. On
stacks 'cuda' and 'rocm' every function of `torch.cuda` without behaviour fails when our code or a test calls it;
libraries that call one get the real function.
"""

from __future__ import annotations

import email.message
import importlib.metadata
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.support.vendor_modules import REAL, Simulation, root
from tests.support.vendor_torch import patched_torch


@contextmanager
def simulate(behaviours: Mapping[str, Any], *, stack: str) -> Iterator[Simulation]:
    """The vendor modules of `stack` ('cuda', 'rocm', 'ascend') with these behaviours; see the module's text.

    Yields:
        The simulation: `calls` lists (dotted name, args, kwargs) of every call that went through.

    Raises:
        AttributeError: a behaviour for a name that the real packages do not have.
    """
    simulation = Simulation(stack, behaviours)
    with ExitStack() as cleanup:
        cleanup.enter_context(_modules(simulation))
        cleanup.enter_context(patched_torch(simulation))
        yield simulation


@contextmanager
def installed(versions: Mapping[str, str | None]) -> Iterator[None]:
    """Make `importlib.metadata` answer with these versions (None: not installed) for these distributions."""
    known = {_canonical(name): (name, version) for name, version in versions.items()}
    original = importlib.metadata.Distribution.from_name

    def from_name(cls: type, name: str) -> importlib.metadata.Distribution:
        if _canonical(name) not in known:
            return original(name)
        version = known[_canonical(name)][1]
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return _Distribution(known[_canonical(name)][0], version)

    with mock.patch.object(importlib.metadata.Distribution, "from_name", classmethod(from_name)):
        yield


class _Distribution(importlib.metadata.Distribution):
    """A distribution of which only name and version are known."""

    def __init__(self, name: str, version: str) -> None:
        self._text = email.message.Message()
        self._text["Metadata-Version"], self._text["Name"], self._text["Version"] = "2.1", name, version

    def read_text(self, filename: str) -> str | None:
        return str(self._text) if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"{self._text['Name']} is simulated and has no file '{path}'")


class _Refusing:
    """A finder that fails where a behaviour says that importing a module does."""

    def __init__(self, failures: Mapping[str, Exception]) -> None:
        self._failures = failures

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._failures:
            raise self._failures[name]


@contextmanager
def _modules(simulation: Simulation) -> Iterator[None]:
    """The simulated modules in `sys.modules`, in place of whatever of these packages was imported before."""
    roots = {root(name) for name in [*simulation.modules, *simulation.failures]} - REAL
    saved = {name: module for name, module in sys.modules.items() if root(name) in roots or name in simulation.modules}
    for name in saved:
        del sys.modules[name]
    finder = _Refusing(simulation.failures)
    sys.meta_path.insert(0, finder)
    sys.modules.update(simulation.modules)  # type: ignore[arg-type]  # None means: not importable
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if root(name) in roots or name in simulation.modules]:
            del sys.modules[name]
        sys.modules.update(saved)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
