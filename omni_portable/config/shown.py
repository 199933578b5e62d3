"""Values as messages show them: in quotes where they are texts, and never longer than a message may be."""

from __future__ import annotations

LONGEST = 100
"""Characters of a value that a message shows."""


def shown(value: object) -> str:
    """`repr(value)`; of a long one the beginning, and how long it is."""
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[: LONGEST // 2]!r}... ({len(value)} characters)"
    if isinstance(value, bytes | bytearray) and len(value) > LONGEST // 4:
        return f"{bytes(value[: LONGEST // 4])!r}... ({len(value)} bytes)"
    text = repr(value)
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
