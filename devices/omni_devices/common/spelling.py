"""Closest valid name for a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def suggestion(name: str, choices: Sequence[str]) -> str:
    """A sentence that names the closest choice, or an empty string where none is close."""
    close = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean '{close[0]}'?" if close else ""
