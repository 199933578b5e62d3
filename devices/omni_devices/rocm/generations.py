"""Generations of AMD's compute GPUs as data. Sources: AMD's data sheets for parts and formats, else vLLM 0.30."""

from __future__ import annotations

from omni_devices.common.cumem_pool import EXPANDABLE
from omni_devices.common.gpu_generations import GB, Generation, lookup

NAME = "rocm"

_ACTOR = {"PYTORCH_ALLOC_CONF": EXPANDABLE}
"""Segments that grow leave less memory unusable; a process that holds an engine's sleeping pool must not have it."""

GENERATIONS = {
    row.name: row
    for row in (
        Generation(
            "gfx90a",
            parts={"MI210": 64 * GB, "MI250 (one of two dies)": 64 * GB, "MI250X (one of two dies)": 64 * GB},
            sleep_allocator=False,
            batch_invariant=False,
            notes=(
                "CDNA 2: no 8-bit floats, no AITER; vLLM's sleeping allocator works on MI300 and later only",
                "torch counts each die of an MI250 as a device",
            ),
        ),
        Generation(
            "gfx942",
            parts={"MI300A": 128 * GB, "MI300X": 192 * GB, "MI325X": 256 * GB},
            fp8="fnuz",
            batch_invariant=False,
            actor_environment=_ACTOR,
            notes=("CDNA 3: its 8-bit floats are the 'fnuz' ones, which differ from the OCP formats of other devices",),
        ),
        Generation(
            "gfx950",
            parts={"MI350X": 288 * GB, "MI355X": 288 * GB},
            fp8="ocp",
            mx=True,
            fp4=True,
            batch_invariant=False,
            actor_environment=_ACTOR,
            notes=("CDNA 4: OCP 8-bit floats and block-scaled formats",),
        ),
    )
}


def generation(name: str) -> Generation:
    """The row of a generation.

    Raises:
        DeviceError: the name is none of them; says why, and lists those that are.
    """
    return lookup(NAME, GENERATIONS, name, _why_not(name))


def _why_not(name: str) -> str:
    if name.startswith(("gfx10", "gfx11", "gfx120")):
        return "it is a graphics part (RDNA), for which neither AITER nor the Composable Kernel attention is built"
    if name.startswith("gfx90"):
        return "compute parts before MI200 have no bfloat16 matrix arithmetic for every kernel that is used here"
    if name.startswith("sm"):
        return (
            "it is one of NVIDIA's; a compute capability, which torch makes up for AMD's GPUs too, names none of these"
        )
    return "no row of the tables describes it"
