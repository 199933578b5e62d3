"""Ways in which an Ascend hands weights to another process, and HCCL's name; nothing is imported to answer."""

from __future__ import annotations

from omni_devices.ascend import host

BACKEND = "hccl"
CHANNELS = ("ipc", "broadcast", "shared_memory")
"""With a driver and a CANN that share memory handles; without, 'ipc' is not offered."""


def weight_channels(root: host.Path = host.ROOT) -> tuple[str, ...]:
    """Channels that this host's driver and CANN serve."""
    shares = host.can_share_handles(host.driver_version(root), host.cann_version(host.cann_home(root)))
    return CHANNELS if shares else CHANNELS[1:]
