"""JSON that somebody else may have written: bounded in size, and no number that a float cannot hold. Torch-free."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_json(path: Path, limit: int, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Content of a file of at most `limit` bytes, which need not say its size (a pipe, a device).

    Args:
        parse_constant: as for `json.loads`.

    Raises:
        OSError: unreadable.
        ValueError: too long, no UTF-8, no JSON, or an integer beyond the floats.
        RecursionError: too deep.
    """
    with open(path, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it has more than {limit >> 20} MiB")
    return json.loads(content.decode("utf-8"), parse_int=_whole_number, parse_constant=parse_constant)


def _whole_number(digits: str) -> int:
    value = int(digits)
    if math.isinf(float(digits)):
        raise ValueError(f"the number {digits[:12]}... is too large")
    return value
