"""Where a train engine was really run; said where it is used elsewhere. (Written with the VeOmni engine.)"""

from __future__ import annotations

import logging

from omni_portable.contracts.device import Device
from omni_portable.contracts.registry import PluginSpec

NOT_RUN = "not run on hardware"
"""As the profiles of devices say it."""

log = logging.getLogger(__name__)


def evidence(spec: PluginSpec, device: str) -> str:
    """What shows that an engine runs on a device (by name), from its spec's 'evidence'; :data:`NOT_RUN` without any."""
    return str(spec.capabilities.get("evidence", {}).get(device, NOT_RUN))


def warn_unproven(spec: PluginSpec, device: Device) -> None:
    """Log a warning where nothing shows that the engine runs on this device."""
    if evidence(spec, device.name) == NOT_RUN:
        known = ", ".join(sorted(spec.capabilities.get("evidence", {}))) or "none"
        log.warning("train engine '%s' on '%s': %s (it was run on: %s)", spec.name, device.name, NOT_RUN, known)
