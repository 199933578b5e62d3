"""Strict modules, classes and functions, built from stored signatures."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ci.vendor_contracts import signature
from ci.vendor_contracts.usage import VENDORS

SIGNATURES = Path(__file__).resolve().parents[1] / "contracts" / "signatures"
MISSING = object()
REAL = frozenset(("torch", "diffusers", "transformers"))
"""Packages that are installed for the tests: behaviours are patched into the real ones."""
FROM_TORCH: Mapping[str, Any] = {"torch_npu.npu._is_in_bad_fork": False, "torch_npu.npu.manual_seed_all": None}
"""What torch itself asks of a device module, whatever a test is about (`torch.manual_seed`), and the answers."""
Record = Mapping[str, Any]


@functools.cache
def stored(stack: str) -> Record:
    """The stored signatures of a stack."""
    found: Record = json.loads((SIGNATURES / f"{stack}.json").read_text(encoding="utf-8"))
    return found


def root(name: str) -> str:
    """The top-level package of a dotted name."""
    return name.partition(".")[0]


class Simulation:
    """The simulated modules of one stack.

    Args:
        stack: 'cuda', 'rocm' or 'ascend'.
        behaviours: dotted name -> what it does or is.

    Raises:
        AttributeError: a behaviour for a name that does not exist.
    """

    def __init__(self, stack: str, behaviours: Mapping[str, Any]) -> None:
        self.stack = stack
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.records: Mapping[str, Record] = stored(stack)["modules"]
        self.behaviours = {self.canonical(name): value for name, value in behaviours.items()}
        self.failures: dict[str, Exception] = {}
        self.modules: dict[str, ModuleType | None] = {}
        self.real_behaviours: dict[str, Any] = {}
        for name, value in self.behaviours.items():
            self._sort(name, value)
        self._build()

    def canonical(self, name: str) -> str:
        """The name with the alias of its module replaced ('torch.npu.x' -> 'torch_npu.npu.x')."""
        for alias, record in sorted(self.records.items(), reverse=True):
            if "alias" in record and (name == alias or name.startswith(f"{alias}.")):
                return str(record["alias"]) + name[len(alias) :]
        return name

    def names(self, module: str) -> bool:
        """Whether it is a module of the stack, or a package of one."""
        return any(known == module or known.startswith(f"{module}.") for known in self.records)

    def function(self, path: str, record: Record, real: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """A function that checks its arguments, then does what its behaviour says."""
        parameters = record.get("parameters")

        def call(*args: Any, **kwargs: Any) -> Any:
            self.check(path, parameters, args, kwargs)
            behaviour = self.behaviours.get(path, real or MISSING)
            if behaviour is MISSING:
                if _from_torch() and path in FROM_TORCH:
                    return FROM_TORCH[path]
                raise AssertionError(f"{path}() was called, but the test gives it no behaviour")
            self.calls.append((path, args, kwargs))
            return self.held(path, record, behaviour(*args, **kwargs))

        call.__name__ = call.__qualname__ = path.rpartition(".")[2]
        return call

    def check(self, path: str, parameters: str | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the real function does not take.

        Raises:
            TypeError: as the real call would.
        """
        if parameters is not None and (problem := signature.refusal(parameters, len(args), list(kwargs))):
            raise TypeError(f"{path}({parameters}): {problem}")

    def held(self, path: str, record: Record, result: Any) -> Any:
        """The result, held to the signatures of the class that the real function returns, where that is known."""
        owner, _, _ = path.rpartition(".")
        for module in (owner, owner.rpartition(".")[0]):
            returned = self.records.get(module, {}).get("members", {}).get(record.get("returns", ""))
            if returned and returned["kind"] == "class" and not returned.get("enum") and result is not None:
                return (
                    result
                    if isinstance(result, Strict)
                    else Strict(self, f"{module}.{record['returns']}", returned, result)
                )
        return result

    def _sort(self, name: str, value: Any) -> None:
        if root(name) in REAL:
            self.real_behaviours[name] = value
        elif name in VENDORS or self.names(name):
            if value is None:
                self.modules[name] = None
            elif isinstance(value, Exception):
                self.failures[name] = value
            else:
                raise TypeError(f"'{name}' is a module: its behaviour is None or an exception")
        else:
            self._require(name, value)

    def _require(self, name: str, value: Any) -> None:
        """Raise AttributeError for a name that the stack does not have."""
        module = max((known for known in self.records if name.startswith(f"{known}.")), key=len, default="")
        if not module:
            raise AttributeError(
                f"no module of '{name}' is in the stored signatures; they hold {', '.join(self.records)}"
            )
        members: Record = self.records[module]["members"]
        record: Record = {}
        for part in name[len(module) + 1 :].split("."):
            if part not in members:
                raise AttributeError(f"{module} of {self.origin(module)} has no '{name[len(module) + 1 :]}'")
            record = members[part]
            members = record.get("members", {})
        if record["kind"] == "function" and not callable(value):
            raise TypeError(f"{name} is a function: its behaviour must be callable")

    def origin(self, module: str) -> str:
        """'torch-npu 2.10.0.post4'."""
        return str(self.records[module]["source"])

    def _build(self) -> None:
        blocked = [name for name, module in self.modules.items() if module is None] + list(self.failures)
        for name, record in self.records.items():
            if root(name) in REAL or any(name == b or name.startswith(f"{b}.") for b in blocked):
                continue
            self._package(name)
            self._fill(name, record)
        for alias, record in self.records.items():
            if "alias" in record and self.modules.get(record["alias"]) is not None:
                self.modules[alias] = self.modules[record["alias"]]

    def _package(self, name: str) -> StrictModule:
        """The module of that name, made with its parents where it is new."""
        module = self.modules.get(name)
        if module is None:
            module = self.modules[name] = StrictModule(name, self)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(self._package(parent), child, module)
        assert isinstance(module, StrictModule)
        return module

    def _fill(self, name: str, module_record: Record) -> None:
        module = self._package(name)
        for member, record in module_record["members"].items():
            path = f"{name}.{member}"
            if record["kind"] == "function":
                setattr(module, member, self.function(path, record))
            elif record["kind"] == "class":
                setattr(module, member, strict_class(self, path, record))
            elif path in self.behaviours or "value" in record:
                setattr(module, member, self.behaviours.get(path, record.get("value")))


class StrictModule(ModuleType):
    """A module that has what the real one has, and nothing else."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__dict__["_simulation"] = simulation

    def __getattr__(self, name: str) -> Any:
        simulation: Simulation = self.__dict__["_simulation"]
        record = simulation.records.get(self.__name__)
        if record is None or name not in record["members"]:
            origin = f" of {simulation.origin(self.__name__)}" if record else ""
            raise AttributeError(f"module '{self.__name__}'{origin} has no attribute '{name}'", name=name, obj=self)
        raise AssertionError(f"{self.__name__}.{name} was read, but the test gives it no value")


class Strict:
    """An object of a test, seen through the signatures of the real class."""

    def __init__(self, simulation: Simulation, path: str, record: Record, target: Any) -> None:
        self.__dict__.update(_simulation=simulation, _path=path, _record=record, _target=target)

    def __getattr__(self, name: str) -> Any:
        simulation: Simulation = self.__dict__["_simulation"]
        path, record, target = (self.__dict__[key] for key in ("_path", "_record", "_target"))
        member = record["members"].get(name)
        if member is None and not record.get("open"):
            raise AttributeError(f"{path} has no attribute '{name}'", name=name, obj=self)
        full = f"{path}.{name}"
        found = getattr(target, name, simulation.behaviours.get(full, MISSING))
        if found is MISSING:
            raise AssertionError(f"{full} was used, but the test gives it no behaviour")
        if member is None or member["kind"] != "function":
            return found
        return functools.partial(_checked_call, simulation, full, member, found)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__["_record"]["members"]:
            raise AttributeError(f"{self.__dict__['_path']} has no attribute '{name}'", name=name, obj=self)
        setattr(self.__dict__["_target"], name, value)


def strict_class(simulation: Simulation, path: str, record: Record) -> Any:
    """A class whose static members and constructor are simulated; enumerations are real ones."""
    name = path.rpartition(".")[2]
    members: Record = record["members"]
    if record.get("enum"):
        values = [(key, inner.get("value", key)) for key, inner in members.items() if inner["kind"] == "value"]
        return enum.Enum(name, [(key, (key, value)) for key, value in values if not key.startswith("_")])
    body: dict[str, Any] = {"__module__": path.rpartition(".")[0]}
    for member, inner in members.items():
        full = f"{path}.{member}"
        if inner["kind"] == "function" and inner.get("static"):
            body[member] = staticmethod(simulation.function(full, inner))
        elif full in simulation.behaviours or "value" in inner:
            body[member] = simulation.behaviours.get(full, inner.get("value"))

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        simulation.check(path, record.get("parameters"), args, kwargs)
        if path not in simulation.behaviours:
            raise AssertionError(f"{path}() was called, but the test gives it no behaviour")
        simulation.calls.append((path, args, kwargs))
        return Strict(simulation, path, record, simulation.behaviours[path](*args, **kwargs))

    body["__new__"] = new
    return type(name, (), body)


def _checked_call(simulation: Simulation, path: str, record: Record, target: Any, *args: Any, **kwargs: Any) -> Any:
    simulation.check(path, record.get("parameters"), args, kwargs)
    simulation.calls.append((path, args, kwargs))
    return simulation.held(path, record, target(*args, **kwargs))


def _from_torch() -> bool:
    """Whether the function that called the simulated one belongs to torch."""
    import sys

    caller = sys._getframe(2).f_globals.get("__name__", "")
    return str(caller).partition(".")[0] == "torch"
