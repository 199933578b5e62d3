"""What keeps the installed stack from driving AMD GPUs; loads without torch."""

from __future__ import annotations

from omni_devices.common.gpu_stack import gpu_state
from omni_devices.rocm.detection import VENDOR
from omni_devices.rocm.packages import TORCH
from omni_portable.contracts.device import StackState


def state(generation: str) -> StackState:
    """See `contracts.device` ('stack_check'); nothing in it depends on the generation."""
    return gpu_state(VENDOR, TORCH)
