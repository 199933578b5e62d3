"""HCCL process groups."""

from __future__ import annotations

from omni_devices.ascend import detection
from omni_devices.ascend.channels import BACKEND
from omni_devices.common.collectives import DistCollectives

HINT = (
    "start every rank with the same init_method; name the interface between the ranks (HCCL_IF_IP=ADDRESS or "
    "HCCL_SOCKET_IFNAME=NAME); keep ports 60000 to 60031 free, or move them (HCCL_IF_BASE_PORT); where ranks start "
    "late, raise HCCL_CONNECT_TIMEOUT (seconds)"
)


class HcclCollectives(DistCollectives):
    """Collectives of the 'ascend' device; torch_npu registers the backend, so it is loaded first.

    Args:
        channels: as `channels.weight_channels` finds them.
    """

    def __init__(self, channels: tuple[str, ...]) -> None:
        super().__init__(BACKEND, "npu", channels, HINT)

    def init_process_group(self, rank: int, world_size: int, init_method: str, timeout_s: float = 600.0) -> None:
        """As `DistCollectives.init_process_group`.

        Raises:
            DeviceError: torch_npu does not load, or the ranks do not find each other in `timeout_s`.
        """
        detection.load_torch_npu()
        super().init_process_group(rank, world_size, init_method, timeout_s)
