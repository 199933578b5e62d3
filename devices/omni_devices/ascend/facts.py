"""What differs between the generations, as data: memory, HCCL, precision, images.

Sources: vLLM-Ascend's documentation and Dockerfiles (main of 2026-08-22), the HCCL environment-variable reference of
CANN 9.0, npu-smi records and out-of-memory reports of users. None of it was measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from omni_devices.ascend import generations

GIB = 1 << 30
MIB = 1 << 20

CANN = "9.1.0"
TORCH = "2.10.0"
TORCH_NPU = "2.10.0.post4"
VLLM_ASCEND_COMMIT = "182b75ea84ff13ece27b57391331ef8935410aea"
"""vLLM-Ascend for vLLM 0.27.1; it has to be built for one generation, which packages on the index are not."""
SERVED_VLLM = "0.27.1"
TRITON_ASCEND = "3.2.2"
MINDIE_SD = "3.1.0"

HCCL_BUFFER_BYTES = 200 * MIB
"""HCCL_BUFFSIZE of this device's environment; every communicator takes two, for itself alone."""
COMMUNICATORS = 3
"""The default group, one for sharding and one for weights: what `reserved_bytes` allows for."""
WITHHELD_BYTES = 3 * GIB + 256 * MIB
"""What the driver keeps of a device's memory: of 64 GiB torch_npu reports 60.96 to 61.28 in users' reports."""


@dataclass(frozen=True)
class Facts:
    """One generation.

    Args:
        memory_bytes: of one device in the smallest product of the family, before what the driver keeps.
        memory_note: the larger products.
        topology: what an index means, and how the devices of a node hang together.
        hccl: variables of every role, with the value that CANN documents as the default made explicit.
        hccl_note: what else may be chosen.
        deterministic: variables that make reductions between devices deterministic.
        deterministic_note: what they do not cover.
        features: named booleans that differ between generations.
    """

    memory_bytes: int
    memory_note: str
    topology: str
    hccl: Mapping[str, str]
    hccl_note: str
    deterministic: Mapping[str, str]
    deterministic_note: str
    features: Mapping[str, bool] = field(default_factory=dict)


_REDUCE = {"HCCL_DETERMINISTIC": "true", "LCCL_DETERMINISTIC": "1"}
_OLDER = {"fp8": False, "mx": False, "int8": True, "batch_invariant": True}
"""A2 and A3: quantised matrices are int8, and vLLM-Ascend builds its batch-invariant operators."""

FACTS: Mapping[str, Facts] = {
    "a2": Facts(
        memory_bytes=32 * GIB,
        memory_note="planned with the 32 GiB of a 910B4, the smallest of the family; 910B1 to 910B3 have 64 GiB",
        topology="one device per card, 8 per node",
        hccl={"HCCL_OP_EXPANSION_MODE": "HOST"},
        hccl_note="HCCL_OP_EXPANSION_MODE=AIV is for inference, and for one communicator at a time",
        deterministic=_REDUCE,
        deterministic_note="HCCL_DETERMINISTIC=strict (one order for all bits) needs equally many cards on every node",
        features=_OLDER,
    ),
    "a3": Facts(
        memory_bytes=64 * GIB,
        memory_note="64 GiB per die; a card has two dies",
        topology="an index is a die: 16 per node, two in a module, modules joined by HCCS; give a job whole modules",
        hccl={"HCCL_OP_EXPANSION_MODE": "AI_CPU", "HCCL_INTER_HCCS_DISABLE": "FALSE"},
        hccl_note="HCCL_OP_EXPANSION_MODE=AIV only inside one super-node; HCCL_INTER_HCCS_DISABLE=TRUE takes RoCE "
        "between the nodes of a super-node",
        deterministic=_REDUCE,
        deterministic_note="HCCL_DETERMINISTIC=strict needs three ranks or more and HCCS between nodes",
        features=_OLDER,
    ),
    "a5": Facts(
        memory_bytes=96 * GIB,
        memory_note="planned with the 96 GiB that vLLM-Ascend documents for a 950DT; a 950PR has 128 GiB",
        topology="one device per card, 8 per node; every 950PR and 950DT reports one SoC number",
        hccl={},
        hccl_note="HCCL_OP_EXPANSION_MODE is left unset: the 950 chooses by topology and size; AIV and CCU_MS are not "
        "for the 950PR",
        deterministic=_REDUCE,
        deterministic_note="CANN's reference names HCCL_DETERMINISTIC for A2 and A3 only, so reductions between 950s "
        "may differ from run to run",
        features={"fp8": True, "mx": True, "int8": False, "batch_invariant": False},
    ),
}

BASE_IMAGES: Mapping[str, str] = {
    name: f"quay.io/ascend/cann:{CANN}-{suffix}-ubuntu22.04-py3.12"
    for name, suffix in zip(generations.NAMES, ("910b", "a3", "950"), strict=True)
}


def reserved_bytes() -> int:
    """Bytes that no tensor gets: what the driver keeps, a context with its operators (about 1 GiB), HCCL's buffers."""
    return WITHHELD_BYTES + GIB + 2 * HCCL_BUFFER_BYTES * COMMUNICATORS
