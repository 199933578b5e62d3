"""What devices share that torch reaches as 'cuda': both GPU vendors' builds of torch do. The build tells them apart."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omni_portable.contracts.errors import DeviceError

TORCH_DEVICE_TYPE = "cuda"
BuiltFor = Literal["", "cuda", "hip"]
TOOLKITS: dict[BuiltFor, str] = {"": "the processor", "cuda": "CUDA", "hip": "ROCm"}


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, what it was built for ('' is the processor) and that toolkit's version."""

    version: str
    built_for: BuiltFor
    toolkit: str


@dataclass(frozen=True)
class Vendor:
    """How one vendor's GPUs show themselves.

    Args:
        build: the torch build that drives them.
        nodes: device files, one of which a loaded driver makes.
        visibility: environment variables that hide GPUs from a process.
    """

    build: BuiltFor
    nodes: tuple[str, ...]
    visibility: tuple[str, ...]


def torch_build() -> TorchBuild | None:
    """The installed torch, or None where there is none; torch is not imported.

    Its `version.py`, a list of assignments, is read where it is not loaded yet.
    """
    if "torch" in sys.modules:
        import torch

        return _build(str(torch.__version__), torch.version.hip, torch.version.cuda)
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if file is None or not file.is_file():
        return None
    values = _assignments(file.read_text(encoding="utf-8"))
    return _build(values.get("__version__", ""), values.get("hip"), values.get("cuda"))


def available(vendor: Vendor) -> tuple[bool, str]:
    """(present, what was looked for and found). Device files come first, then the build of torch; only where both are
    right, torch is imported and counts GPUs, which it does through the driver's management library, without a context.
    """
    node = next((node for node in vendor.nodes if Path(node).exists()), None)
    build = torch_build()
    built = describe_build(build, vendor.build)
    if node is None:
        return False, f"no {' or '.join(vendor.nodes)}; {built}"
    if build is None or build.built_for != vendor.build:
        return False, f"{node} exists, but {built}"
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        hidden = [f"{name}={os.environ[name]!r}" for name in vendor.visibility if name in os.environ]
        return False, f"{node} exists and {built}, but torch sees no GPU{' with ' if hidden else ''}{', '.join(hidden)}"
    return True, f"{count} GPU{'s' if count > 1 else ''} at {node}; {built}"


def describe_build(build: TorchBuild | None, wanted: BuiltFor) -> str:
    """A clause about the installed torch, as seen by somebody who wants a build for `wanted`."""
    if build is None:
        return "torch is not installed"
    if build.built_for == wanted:
        return f"torch {build.version} is built for {TOOLKITS[wanted]} {build.toolkit}"
    if build.built_for:
        return f"torch {build.version} is built for {TOOLKITS[build.built_for]}, not for {TOOLKITS[wanted]}"
    return f"torch {build.version} is built without {TOOLKITS[wanted]}"


def visible_devices(names: tuple[str, ...]) -> str | None:
    """The value of the visibility variables, None where none is set.

    Raises:
        DeviceError: two of them differ, so that libraries would see different GPUs.
    """
    given = {name: os.environ[name] for name in names if name in os.environ}
    if len(set(given.values())) > 1:
        raise DeviceError(
            f"the environment names different GPUs: {', '.join(f'{name}={value!r}' for name, value in given.items())}",
            remedy=f"set {' and '.join(names)} to the same value, or only one of them",
        )
    return next(iter(given.values()), None)


def resolve_generation(device: str, vendor: Vendor, named: str, present: Callable[[], str]) -> str:
    """The generation a device is made for: the present one, or without a driver to ask the one that was named.

    Args:
        named: '' where none was.
        present: asks the driver.

    Raises:
        DeviceError: another one is present than was named, or what `present` raises.
    """
    if named and not any(Path(node).exists() for node in vendor.nodes):
        return named
    found = present()
    if named and named != found:
        raise DeviceError(
            f"device '{device}:{named}' was asked for, but the GPUs here are of generation '{found}'",
            remedy=f"set device.name={device}:{found}, or run on a machine with '{named}'",
        )
    return found


def _build(version: str, hip: str | None, cuda: str | None) -> TorchBuild:
    return TorchBuild(version, "hip" if hip else "cuda" if cuda else "", hip or cuda or "")


def _assignments(text: str) -> dict[str, str]:
    """NAME = 'text' and NAME: annotation = 'text' at the top level of Python source."""
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                found[target.id] = node.value.value
    return found
