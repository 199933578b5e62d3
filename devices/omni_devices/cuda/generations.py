"""Generations of NVIDIA GPUs as data. Sources: NVIDIA's data sheets for parts and formats; vLLM 0.30 for the rest."""

from __future__ import annotations

from omni_devices.common.cumem_pool import EXPANDABLE
from omni_devices.common.gpu_generations import GB, Generation, lookup

NAME = "cuda"

_NVLS_OFF = {"NCCL_NVLS_ENABLE": "0"}
"""Sums inside the NVLink switch come in another order than those of rings and trees, and its multicast buffers stay on
the device while an engine sleeps. vLLM's batch-invariant mode turns it off too."""
_ACTOR = {"PYTORCH_ALLOC_CONF": EXPANDABLE}
"""Segments that grow leave less memory unusable. A process that holds an engine's sleeping pool must not have it, so
'local', where both may share one, does not."""

GENERATIONS = {
    row.name: row
    for row in (
        Generation(
            "sm80",
            parts={"A100 40GB": 40 * GB, "A100 80GB": 80 * GB},
            actor_environment=_ACTOR,
            notes=("Ampere: no 8-bit floats",),
        ),
        Generation(
            "sm89",
            parts={"L4": 24 * GB, "GeForce RTX 4090": 24 * GB, "L40S": 48 * GB},
            actor_environment=_ACTOR,
            fp8="ocp",
            notes=("Ada: no NVLink; GPUs exchange data over PCIe, or through the host where peer access is off",),
        ),
        Generation(
            "sm90",
            parts={"H100": 80 * GB, "H100 NVL": 94 * GB, "H20": 96 * GB, "GH200": 96 * GB, "H200": 141 * GB},
            actor_environment=_ACTOR,
            fp8="ocp",
            environment=_NVLS_OFF,
            notes=("Hopper: the only generation with FlashAttention 3",),
        ),
        Generation(
            "sm100",
            parts={"B200": 180 * GB, "GB200": 186 * GB},
            actor_environment=_ACTOR,
            fp8="ocp",
            mx=True,
            fp4=True,
            environment=_NVLS_OFF,
            notes=(
                "Blackwell for data centres: FlashAttention 4; FlashAttention 2 and 3 of vLLM-Omni do not run here",
            ),
        ),
        Generation(
            "sm120",
            parts={"GeForce RTX 5090": 32 * GB, "RTX PRO 6000 Blackwell": 96 * GB},
            actor_environment=_ACTOR,
            fp8="ocp",
            mx=True,
            fp4=True,
            notes=("Blackwell for workstations: no NVLink, and none of vLLM-Omni's FlashAttention kernels",),
        ),
    )
}

_RELATIVES = {
    "sm86": "it shares sm80's instructions but has 100 instead of 164 KB of shared memory for a block, so kernels have "
    "other limits of head_dim there, and it has no row of its own",
    "sm87": "it is an embedded part whose memory is the host's, and has no row of its own",
    "sm103": "it is newer than the kernels that the tables describe, and has no row of its own",
    "sm110": "it is an embedded part whose memory is the host's, and has no row of its own",
    "sm121": "it is a part whose memory is the host's, and has no row of its own",
}


def generation(name: str) -> Generation:
    """The row of a generation.

    Raises:
        DeviceError: the name is none of them; says why, and lists those that are.
    """
    return lookup(NAME, GENERATIONS, name, _why_not(name))


def _why_not(name: str) -> str:
    if name in _RELATIVES:
        return _RELATIVES[name]
    number = name.removeprefix("sm")
    if number.isdecimal() and int(number) < 80:
        return "GPUs before Ampere have no bfloat16 arithmetic, and flash attention does not run there"
    return "no row of the tables describes it"
