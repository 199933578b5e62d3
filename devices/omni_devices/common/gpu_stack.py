"""Whether torch as installed can drive a vendor's GPUs: device files and torch's `version.py`, nothing is imported."""

from __future__ import annotations

from pathlib import Path

from omni_devices.common.torch_cuda_api import Vendor, describe_build, torch_build
from omni_portable.contracts.device import PackageNeed, StackProblem, StackState


def gpu_state(vendor: Vendor, torch: PackageNeed) -> StackState:
    """The state of a vendor's stack.

    Args:
        torch: the pinned torch; its command installs the vendor's build.
    """
    node = next((node for node in vendor.nodes if Path(node).exists()), None)
    build = torch_build()
    built = describe_build(build, vendor.build)
    found = f"{node or 'no ' + ' or '.join(vendor.nodes)}; {built}"
    if build is None or build.built_for == vendor.build:
        return StackState(node is not None and build is not None, found)
    return StackState(False, found, (StackProblem("torch", built, torch.install),))
