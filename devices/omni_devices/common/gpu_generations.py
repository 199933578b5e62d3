"""Generations of GPUs as data, and what follows from a row: capabilities and the facts of a static profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from omni_portable.contracts.device import DeviceCapabilities
from omni_portable.contracts.errors import DeviceError

GB = 10**9
"""Parts are sold in decimal gigabytes; drivers report a little more."""
DTYPES = ("bfloat16", "float16", "float32", "float64")
WEIGHT_CHANNELS = ("ipc", "broadcast", "shared_memory")
"""IPC handles serve processes on one GPU, a broadcast group those on different ones, shared memory those of one host
where neither will do (a container without IPC rights)."""
RESERVED_BYTES = 2 * 2**30
"""What planning keeps free on every GPU for driver context, library workspaces and communicators: an estimate, of which
half a GiB is the context and its loaded kernels."""


@dataclass(frozen=True)
class Generation:
    """One generation of GPUs.

    Args:
        name: as the device spells it ('sm90', 'gfx942').
        parts: model -> bytes of memory of one device as torch counts devices.
        fp8: flavour of the 8-bit float formats in hardware; 'fnuz' encodes zero and NaN unlike the OCP standard, so
            weights of one are garbage to the other.
        mx: block-scaled (microscaling) 8-bit arithmetic.
        fp4: 4-bit float arithmetic.
        sleep_allocator: the rollout engine's allocator can unmap memory here.
        batch_invariant: the rollout engine has kernels whose results do not depend on the batch.
        environment: variables of every process on this generation, beyond the device's.
        actor_environment: further variables of an actor that has a process of its own.
        notes: for people.
    """

    name: str
    parts: Mapping[str, int]
    fp8: Literal["none", "fnuz", "ocp"] = "none"
    mx: bool = False
    fp4: bool = False
    sleep_allocator: bool = True
    batch_invariant: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    actor_environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Of the smallest part, so that what is planned fits every part."""
        return min(self.parts.values())

    @property
    def features(self) -> dict[str, bool]:
        """What :class:`DeviceCapabilities` calls features."""
        return {
            "bf16_native": True,
            "float64": True,
            "fp8": self.fp8 != "none",
            "fp8_ocp": self.fp8 == "ocp",
            "fp8_fnuz": self.fp8 == "fnuz",
            "mx": self.mx,
            "fp4": self.fp4,
            "graphs": True,
            "ipc": True,
            "pinned_memory": True,
            "sleep_allocator": self.sleep_allocator,
            "batch_invariant": self.batch_invariant,
        }


def lookup(device: str, generations: Mapping[str, Generation], name: str, why_not: str) -> Generation:
    """The row of a generation.

    Raises:
        DeviceError: none has the name; `why_not` is the reason, as a sentence.
    """
    if name not in generations:
        raise DeviceError(
            f"device '{device}' does not know the generation '{name}': {why_not}",
            remedy="run on one of the choices; another generation needs a row in the device's tables",
            choices=list(generations),
        )
    return generations[name]


def capabilities(rows: Mapping[str, Generation]) -> DeviceCapabilities:
    """What holds on every one of the rows; at least one."""
    features = [row.features for row in rows.values()]
    return DeviceCapabilities(
        dtypes=DTYPES,
        default_dtype="bfloat16",
        default_dtype_reason="matrix units run bfloat16 natively, and it keeps float32's range, so no loss is scaled",
        weight_channels=WEIGHT_CHANNELS,
        features={name: all(one[name] for one in features) for name in features[0]},
    )


def environment(common: Mapping[str, str], row: Generation | None, role: str) -> dict[str, str]:
    """Variables of a process of `role` on a generation; without a row, what holds on all."""
    if row is None:
        return dict(common)
    return {**common, **row.environment, **(row.actor_environment if role == "actor" else {})}


def notes(rows: Mapping[str, Generation]) -> tuple[str, ...]:
    """A generation's own notes and its parts; of several rows, only how to name one."""
    if len(rows) > 1:
        return (f"facts that hold for all of {', '.join(rows)}; name one for its memory and its own kernels",)
    row = next(iter(rows.values()))
    parts = ", ".join(f"{model} {size // GB} GB" for model, size in row.parts.items())
    return (f"parts: {parts}; planning assumes the smallest", *row.notes)
