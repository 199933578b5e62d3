"""Ascend generations as data: SoC numbers, chip names, and what is refused. Imports nothing heavy.

Numbers and names are those of torch_npu's `SocVersion` (csrc/core/npu/NpuVariables.h of 2.10.0.post4 and 2.13.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from omni_portable.contracts.errors import DeviceError

NAMES = ("a2", "a3", "a5")
PRODUCTS: Mapping[str, str] = {
    "a2": "Ascend 910B family (Atlas 800 A2)",
    "a3": "Ascend 910_93 family, sold as 910C (Atlas 800 A3)",
    "a5": "Ascend 950 family (950PR, 950DT)",
}


@dataclass(frozen=True)
class Soc:
    """One SoC number.

    Args:
        name: as torch_npu spells it, without the leading 'Ascend'.
        generation: one of `NAMES`; '' where it is not supported.
        what: of an unsupported one, what it is and why it cannot serve.
    """

    name: str
    generation: str = ""
    what: str = ""


_A1 = "a first-generation Ascend 910, which has no bfloat16 and no fused attention for training"
_310P = "an inference chip without bfloat16 and without training operators"
_EDGE = "an edge chip"


def _numbered(first: int, names: str, generation: str = "", what: str = "") -> dict[int, Soc]:
    return {first + place: Soc(name, generation, what) for place, name in enumerate(names.split())}


SOCS: Mapping[int, Soc] = {
    **_numbered(100, "910PremiumA 910ProA 910A 910ProB 910B", what=_A1),
    **_numbered(200, "310P1 310P2 310P3 310P4 310P5 310P7", what=_310P),
    **_numbered(220, "910B1 910B2 910B2C 910B3 910B4 910B4-1", "a2"),
    **_numbered(240, "310B1 310B2 310B3 310B4", what=_EDGE),
    **_numbered(250, "910_9391 910_9392 910_9381 910_9382 910_9372 910_9362 910_9363", "a3"),
    **_numbered(260, "950", "a5"),
}
"""Number that `torch_npu.npu.get_soc_version()` returns -> what it is. Every 950PR and 950DT reports 260."""

_PATTERNS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"Ascend910B[1-9]"), "a2", ""),
    (re.compile(r"Ascend910_93"), "a3", ""),
    (re.compile(r"Ascend(950|95H|910_95)"), "a5", ""),
    (re.compile(r"Ascend310P"), "", _310P),
    (re.compile(r"Ascend310"), "", _EDGE),
    (re.compile(r"Ascend910(A|B$|Pro|Premium)"), "", _A1),
)
"""Start of a chip's name -> generation, or why it is refused. 'Ascend910B' without a digit is the old chip."""

_BUILDS: Mapping[str, str] = {"A2": "a2", "A3": "a3", "A5": "a5"}


def check(generation: str) -> None:
    """Refuse a generation that the tables do not hold; '' passes, it stands for the one that is present.

    Raises:
        DeviceError: no such generation.
    """
    if generation and generation not in NAMES:
        raise DeviceError(
            f"device 'ascend' has no generation '{generation}'",
            remedy="name one of the choices, or leave it out to have it read from the driver",
            choices=known(),
        )


def from_number(number: int, name: str = "") -> str:
    """The generation of a SoC number; `name`, where it is known, is for the message.

    Raises:
        DeviceError: the number is in no table, or stands for a chip that is not supported.
    """
    soc = SOCS.get(number)
    if soc is None:
        called = f" and the name '{name}'" if name else ""
        raise _refusal(
            f"torch_npu reports SoC version {number}{called}, which is unknown here",
            "update torch_npu and this package: one of them is older than the chip",
        )
    if not soc.generation:
        raise _refusal(f"torch_npu reports SoC version {number}: Ascend{soc.name}, {soc.what}")
    return soc.generation


def from_name(name: str) -> str:
    """The generation of a chip's full name ('Ascend910B3', 'Ascend910_9392', 'Ascend950PR_9579').

    Raises:
        DeviceError: the name is in no table, or is that of a chip that is not supported.
    """
    for pattern, generation, what in _PATTERNS:
        if pattern.match(name):
            if not generation:
                raise _refusal(f"this is an '{name}', {what}")
            return generation
    raise _refusal(f"the chip's name '{name}' is unknown here", "update this package, or report the name")


def names_one(name: str) -> bool:
    """Whether a chip's name is that of a supported generation."""
    return any(generation and pattern.match(name) for pattern, generation, _ in _PATTERNS)


def from_build(device_type: str) -> str:
    """The generation for which vLLM-Ascend was built ('A3' -> 'a3'); '' for any build that serves none of ours."""
    return _BUILDS.get(device_type, "")


def known() -> tuple[str, ...]:
    """'ascend:a2 (Ascend 910B family ...)' and so on, for messages."""
    return tuple(f"ascend:{name} ({PRODUCTS[name]})" for name in NAMES)


def _refusal(problem: str, remedy: str = "") -> DeviceError:
    return DeviceError(
        f"device 'ascend': {problem}", remedy=remedy or "run on one of the known generations", choices=known()
    )
