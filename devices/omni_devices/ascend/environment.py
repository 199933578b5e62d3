"""Variables that processes on an Ascend host need, per role and generation, as data; nothing is set here.

Allocator settings and HCCL_* are read once, when the device context or the communicator is made: a launcher sets these
before the process imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from omni_devices.ascend.facts import FACTS, HCCL_BUFFER_BYTES, MIB

VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
RAY_RESOURCE = "NPU"
RAY_KEEPS_VISIBLE_DEVICES = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
ANY_ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""Torch's own name for the same settings, which torch_npu reads too."""
EXPANDABLE = "expandable_segments:True"
NZ = "VLLM_ASCEND_ENABLE_NZ"
DEVICELESS_ROLES = ("driver",)
"""Roles that never touch a device; their host may lack CANN."""
POOLED_ROLES = ("rollout", "local")
"""Roles whose process may hold vLLM-Ascend's sleeping allocator, which excludes expandable segments."""

_EVERY_ROLE = {
    # torch loads torch_npu by itself; without CANN that makes plain `import torch` fail, see the driver's value.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
    "TASK_QUEUE_ENABLE": "1",
    "HCCL_BUFFSIZE": str(HCCL_BUFFER_BYTES // MIB),
    # Ranks that load large models reach the first collective minutes apart; CANN waits 120 s by default.
    "HCCL_CONNECT_TIMEOUT": "600",
    # transformers' flash_attention_2: causal masks aligned lower right, whatever the caller's shell says.
    "NPU_FA2_SPARSE_MODE": "3",
}
_ROLLOUT = {
    # A process that has used an NPU must not fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Weights stay in plain layout: in NZ layout vLLM-Ascend refuses to wake up, and updated weights would be wrong.
    NZ: "0",
    # Which operator MindIE-SD runs behind vLLM-Omni's FLASH_ATTN: npu_fusion_attention, as the actor does.
    "MINDIE_SD_FA_TYPE": "fused_attn_score",
}


def variables(generation: str, role: str) -> dict[str, str]:
    """Variables of one role ('local', 'actor', 'rollout', 'reward', 'driver', ...).

    `ASCEND_RT_VISIBLE_DEVICES` is the launcher's to set (see :func:`visible_devices`), as are `HCCL_IF_IP` or
    `HCCL_SOCKET_IFNAME` where a job spans hosts.
    """
    if role in DEVICELESS_ROLES:
        return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    chosen = {**common(generation), ALLOCATOR: EXPANDABLE}
    if role in POOLED_ROLES:
        # Said outright, because vLLM-Ascend switches expandable segments on where the variable does not name them.
        chosen |= {**_ROLLOUT, ALLOCATOR: "expandable_segments:False"}
    return chosen


def common(generation: str) -> dict[str, str]:
    """What every role with a device has in common."""
    return {**_EVERY_ROLE, **FACTS[generation].hccl}


def visible_devices(indices: Sequence[int]) -> str:
    """The value of `ASCEND_RT_VISIBLE_DEVICES` for these devices; the driver reads ascending numbers only."""
    return ",".join(str(index) for index in sorted(set(indices)))
