"""What `npu-smi` says about the chip: the generation on hosts where torch_npu is not loaded, without a device context.

Output differs by generation: the 950 names its chip in the card's own record, the others in the record of chip 0. An
A2 gives 'Chip Type: Ascend' and 'Chip Name: 910B3', an A3 'Chip Name: Ascend910' and 'NPU Name: 9392'.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from omni_portable.contracts.errors import DeviceError

TIMEOUT_S = 30.0
COMMAND = "npu-smi"
Run = Callable[[Sequence[str]], str]
"""Arguments after the program's name -> what it printed."""


@dataclass(frozen=True)
class Board:
    """A chip's record: full name ('Ascend910B3') and the driver's version ('' where the record has none)."""

    name: str
    driver: str


def installed() -> bool:
    """Whether npu-smi is on the PATH."""
    return shutil.which(COMMAND) is not None


def board(run: Run | None = None) -> Board:
    """The first card's chip; all chips of a host are of one kind.

    Raises:
        DeviceError: npu-smi fails, lists no card, or prints a record that names no chip.
    """
    ask = run or _run
    card = next(cards(ask(("info", "-l"))), None)
    if card is None:
        raise DeviceError(
            "npu-smi lists no card (npu-smi info -l)", remedy="give the container its /dev/davinci* devices"
        )
    record = fields(ask(("info", "-t", "board", "-i", str(card))))
    if "Chip Name" not in record:
        record = {**record, **fields(ask(("info", "-t", "board", "-i", str(card), "-c", "0")))}
    return Board(chip_name(record), record.get("Software Version", ""))


def cards(listing: str) -> Iterator[int]:
    """NPU ids in the output of `npu-smi info -l`."""
    for line in listing.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "NPU ID" and value.strip().isdigit():
            yield int(value)


def fields(record: str) -> dict[str, str]:
    """'Key : value' lines of a record; the first of equal keys counts."""
    found: dict[str, str] = {}
    for line in record.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def chip_name(record: Mapping[str, str]) -> str:
    """The chip's name as torch_npu spells it: 'Ascend910B3', 'Ascend910_9392', 'Ascend950PR_9579'.

    Raises:
        DeviceError: the record has no chip name, or one that says too little.
    """
    chip, npu = record.get("Chip Name", ""), record.get("NPU Name", "")
    if "a2g3" in chip.lower():
        return "Ascend910B1"  # what one edition of the driver calls an A2
    if not chip.startswith("Ascend"):
        chip = f"{record.get('Chip Type', '')}{chip}"
    if chip == "Ascend" or not chip.startswith("Ascend"):
        shown = ", ".join(f"{key}: {value}" for key, value in record.items() if key.endswith(("Name", "Type")))
        raise DeviceError(
            f"npu-smi names no Ascend chip ({shown or 'an empty record'})",
            remedy="name the generation: device.name=ascend:a2, ascend:a3 or ascend:a5",
        )
    return f"{chip}_{npu}" if npu else chip


def _run(arguments: Sequence[str]) -> str:
    command = [COMMAND, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(
            f"'{' '.join(command)}' failed: {error}",
            remedy="repair the driver's installation, or name the generation (device.name=ascend:a2, ...)",
        ) from error
    return done.stdout
