"""What keeps the installed stack from driving an NPU, above all what makes plain `import torch` fail.

torch imports torch_npu by itself (entry point 'torch.backends'). torch_npu raises where CANN's libraries are not found,
and where torch was built for another accelerator; `import torch` then raises too. Loads without either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from omni_devices.ascend import detection, facts, host, vllm_build
from omni_devices.ascend.profile import FIRST, packages
from omni_devices.common.packages import installed_version
from omni_devices.common.torch_cuda_api import TOOLKITS, torch_build
from omni_portable.contracts.device import StackProblem, StackState
from omni_portable.contracts.errors import DeviceError

LIBRARY = "libascendcl.so"
"""CANN's library that torch_npu loads first."""

CPU_TORCH = f"pip install --force-reinstall torch=={facts.TORCH} --index-url https://download.pytorch.org/whl/cpu"
REMOVE = "pip uninstall -y torch-npu"


def state(generation: str, root: Path = host.ROOT, environ: Mapping[str, str] = os.environ) -> StackState:
    """See `contracts.device` ('stack_check').

    Args:
        generation: '' leaves out what depends on it.
        root / environ: where to look, for tests.
    """
    present, found = detection.present(root)
    problems = [*_torch_npu_problems(root, environ), *_triton_problems(), *_build_problems(generation)]
    return StackState(present, found, tuple(problems))


def _torch_npu_problems(root: Path, environ: Mapping[str, str]) -> Iterator[StackProblem]:
    version = installed_version("torch-npu")
    if version is None:
        return
    build = torch_build()
    if build is not None and build.built_for:
        toolkit = TOOLKITS[build.built_for]
        problem = f"torch {build.version} is built for {toolkit}, beside which torch-npu {version} refuses to load"
        remedy = f"{CPU_TORCH}; or, where the NPU is not wanted, {REMOVE}"
        yield StackProblem("torch", problem, remedy, breaks_torch=True)
    home = host.cann_home(root, environ)
    if home is None:
        problem = f"torch-npu {version} is installed, but no CANN toolkit"
        remedy = f"install CANN {facts.CANN} and `{host.SET_ENV}`, or {REMOVE}"
        yield StackProblem("torch-npu", problem, remedy, breaks_torch=True)
    elif not host.cann_is_sourced(environ) and not _library_is_known(environ):
        problem = f"torch-npu {version} will not find the libraries of the CANN toolkit in {home}"
        yield StackProblem("torch-npu", problem, host.SET_ENV, breaks_torch=True)


def _library_is_known(environ: Mapping[str, str]) -> bool:
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any((Path(folder) / LIBRARY).is_file() for folder in folders)


def _triton_problems() -> Iterator[StackProblem]:
    """Both install a package of the same name, and the later one wins."""
    triton, ascend = installed_version("triton"), installed_version("triton-ascend")
    if triton is not None and ascend is not None:
        problem = f"triton {triton} and triton-ascend {ascend} overwrite each other's files"
        install = next(need.install for need in packages(FIRST) if need.distribution == "triton-ascend")
        yield StackProblem("triton", problem, f"pip uninstall -y triton-ascend; {install}")


def _build_problems(generation: str) -> Iterator[StackProblem]:
    if not generation:
        return
    try:
        vllm_build.check(vllm_build.installed(), generation)
    except DeviceError as error:
        yield StackProblem(vllm_build.DISTRIBUTION, error.problem, error.remedy)
