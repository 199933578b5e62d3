"""Values as messages show them: in quotes where they are texts, and never longer than a message may be."""

from __future__ import annotations

LONGEST = 100
"""Characters of a value that a message shows."""


def shown(value: object) -> str:
    """`repr(value)`; of a long one the beginning, and how long it is."""
    if isinstance(value, str | bytes | bytearray) and len(value) > LONGEST:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{shown(bytes(value[:30]) if unit == 'bytes' else value[: LONGEST // 2])}... ({len(value)} {unit})"
    text = repr(value)
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
