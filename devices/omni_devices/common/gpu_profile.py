"""Identity and static profile of GPUs, built from a vendor's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omni_devices.common import gpu_generations
from omni_devices.common.gpu_generations import Generation
from omni_devices.common.kernel_table import COMPONENTS, KernelTable
from omni_devices.common.selector import TableAttention
from omni_devices.common.torch_cuda_api import TORCH_DEVICE_TYPE, Vendor
from omni_portable.contracts.device import DeviceIdentity, PackageNeed, StaticProfile
from omni_portable.contracts.errors import DeviceError

COLLECTIVE_BACKEND = "nccl"
"""Torch calls RCCL by this name too, and has it behind it in the other vendor's build."""

_SHARED_SEGMENTS = (
    "torch hands such segments to another process as file descriptors, so the 'ipc' channel then needs the right to "
    "trace it (CAP_SYS_PTRACE in a container)"
)


@dataclass(frozen=True)
class Tables:
    """All that a vendor's device knows without hardware.

    Args:
        row: the row of a generation by its name, or an error that says why there is none.
        environment: variables of a process, by generation ('' for all) and role.
        notes: for people.
    """

    table: KernelTable
    generations: Mapping[str, Generation]
    row: Callable[[str], Generation]
    environment: Callable[[str, str], Mapping[str, str]]
    vendor: Vendor
    packages: tuple[PackageNeed, ...]
    constraints: str
    image: str
    notes: tuple[str, ...]


def static_profile(tables: Tables, generation: str) -> StaticProfile:
    """The profile of one generation, or with '' of what holds on all. Variables that only an actor with a process of
    its own has are a note.

    Raises:
        DeviceError: an unknown generation.
    """
    rows = {generation: tables.row(generation)} if generation else tables.generations
    single = next(iter(rows.values())) if len(rows) == 1 else None
    actor = single.actor_environment if single else {}
    actor_note = (f"an actor in a process of its own also gets {_spelled(actor)}; {_SHARED_SEGMENTS}",) if actor else ()
    visibility = f"GPUs are hidden from a process by {' and '.join(tables.vendor.visibility)}"
    offered = [tables.table.offered(component, generation) for component in COMPONENTS]
    return StaticProfile(
        name=tables.table.device,
        generation=generation,
        capabilities=gpu_generations.capabilities(rows),
        attention_families=tuple(dict.fromkeys(family for families in offered for family in families)),
        default_attention={component: tables.table.default(component, generation) for component in COMPONENTS},
        memory_bytes=single.memory_bytes if single else None,
        collective_backend=COLLECTIVE_BACKEND,
        environment=tables.environment(generation, ""),
        notes=(*gpu_generations.notes(rows), *tables.notes, *actor_note, visibility),
        torch_device_type=TORCH_DEVICE_TYPE,
        attention=TableAttention(tables.table, generation, TORCH_DEVICE_TYPE, lookup=None),
        reserved_bytes=gpu_generations.RESERVED_BYTES,
        packages=tables.packages,
        constraints=tables.constraints,
        image=tables.image,
    )


def identity(
    name: str, generation: str, generation_of: Callable[[Any], str], driver: str, libraries: Mapping[str, str]
) -> DeviceIdentity:
    """What torch says of the GPUs it sees; this starts the runtime in the process.

    Args:
        generation_of: of torch's properties of one GPU.

    Raises:
        DeviceError: there is none, they differ, or are of another generation than the device was made for.
    """
    import torch

    seen = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    kinds = {(properties.name, generation_of(properties)) for properties in seen}
    if len(kinds) != 1 or generation_of(seen[0]) != generation:
        found = ", ".join(f"{model} ({kind})" for model, kind in sorted(kinds)) or "no GPU"
        raise DeviceError(
            f"device '{name}:{generation}' stands for GPUs of one kind, but torch sees {found}",
            remedy="leave only GPUs of one kind visible to the process, and name their generation or none",
        )
    return DeviceIdentity(
        name=name,
        generation=generation,
        model=seen[0].name,
        count=len(seen),
        memory_bytes=min(properties.total_memory for properties in seen),
        driver=driver,
        libraries={
            "torch": str(torch.__version__),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            **libraries,
        },
    )


def _spelled(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())
