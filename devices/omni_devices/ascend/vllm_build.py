"""The installed vLLM-Ascend, read from its files: importing it would import vLLM, torch_npu and start a context.

vLLM-Ascend is compiled for one generation and writes which into `vllm_ascend/_build_info.py` (`__device_type__`). Its
workers stop on any other; the package on PyPI is an A2 build.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

from omni_devices.ascend import generations
from omni_devices.ascend.facts import VLLM_ASCEND_COMMIT
from omni_devices.ascend.host import SET_ENV
from omni_portable.contracts.errors import DeviceError

DISTRIBUTION = "vllm-ascend"
SOC_VERSIONS = {"a2": "ascend910b1", "a3": "ascend910_9391", "a5": "ascend950dt_9582"}
"""Generation -> SOC_VERSION for which vLLM-Ascend's own images are built; it selects the generation's operators."""


@dataclass(frozen=True)
class Build:
    """An installed vLLM-Ascend.

    Args:
        device_type: 'A2', 'A3', 'A5', '_310P', or '' where the build does not say.
        has_extension: its compiled part is there, which its sleeping allocator needs.
    """

    device_type: str
    has_extension: bool


def installed() -> Build | None:
    """The installed build, or None where there is none; found like an import, without running any of its code."""
    for finder in sys.meta_path:
        spec = finder.find_spec("vllm_ascend", None)
        if spec and spec.submodule_search_locations:
            return read(Path(next(iter(spec.submodule_search_locations))))
    return None


def read(package: Path) -> Build:
    """The build in a package folder."""
    return Build(_device_type(package / "_build_info.py"), any(package.glob("vllm_ascend_C*.so")))


def check(build: Build | None, generation: str) -> None:
    """Refuse a vLLM-Ascend that was built for another generation; none, or one that does not say, passes.

    Raises:
        DeviceError: with the commands that rebuild it.
    """
    if build is None or not build.device_type or generations.from_build(build.device_type) == generation:
        return
    raise DeviceError(
        f"the installed {DISTRIBUTION} was built for {build.device_type.lstrip('_')}, but this device is "
        f"'{generation}' ({generations.PRODUCTS[generation]})",
        remedy=f"{reinstall(generation)}; or take the image of this generation (dockerfiles/Dockerfile.ascend, SOC="
        f"{generation})",
    )


def reinstall(generation: str) -> str:
    """The command that builds vLLM-Ascend for the generation."""
    return (
        f"{SET_ENV} && SOC_VERSION={SOC_VERSIONS[generation]} COMPILE_CUSTOM_KERNELS=1 pip install --force-reinstall "
        f"--no-deps --no-build-isolation git+https://github.com/vllm-project/vllm-ascend@{VLLM_ASCEND_COMMIT}"
    )


def _device_type(file: Path) -> str:
    if not file.is_file():
        return ""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        if any(isinstance(target, ast.Name) and target.id == "__device_type__" for target in node.targets):
            return str(node.value.value)
    return ""
