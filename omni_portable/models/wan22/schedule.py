"""The published schedule of Wan: evenly spaced sigmas from 1 towards 0, shifted. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.rollout import Schedule
from omni_portable.samplers.schedule import flow_match_schedule

_SHIFTS = {"UniPCMultistepScheduler": "flow_shift", "FlowMatchEulerDiscreteScheduler": "shift"}
"""Scheduler class -> its key for the shift."""


def folder_shift(config: Mapping[str, Any]) -> float:
    """The shift that a folder's `scheduler_config.json` names.

    Raises:
        ModelError: a scheduler of another class or of another kind of prediction, or a shift that is no number.
    """
    name = str(config.get("_class_name"))
    if name not in _SHIFTS:
        raise ModelError(f"scheduler class '{name}' is none that Wan 2.2 uses", choices=sorted(_SHIFTS))
    if name == "UniPCMultistepScheduler" and not (
        config.get("use_flow_sigmas") and config.get("prediction_type") == "flow_prediction"
    ):
        raise ModelError("the scheduler does not describe flow matching (use_flow_sigmas, prediction_type)")
    shift = config.get(_SHIFTS[name], 1.0)
    if isinstance(shift, bool) or not isinstance(shift, int | float) or not shift > 0:
        raise ModelError(f"scheduler option '{_SHIFTS[name]}' is {shift!r}, not a number above 0")
    return float(shift)


def wan_schedule(num_steps: int, shift: float) -> Schedule:
    """Sigmas shift s / (1 + (shift - 1) s) for s = 1, 1 - 1/T, ..., 1/T, and 0."""
    even = np.linspace(1.0, 0.0, num_steps + 1)[:-1]
    return flow_match_schedule(num_steps, shift=shift, sigmas=[float(value) for value in even])
