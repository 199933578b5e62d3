"""Texts as values of Hydra's override grammar."""

from __future__ import annotations

import re


def quote_value(text: str) -> str:
    """`text` so that the grammar reads it back unchanged: as it is where that is safe, otherwise in single quotes.

    Inside quotes a backslash only means something before a quote or at the end, so only there it is doubled.
    """
    if "/" in text and re.fullmatch(r"[A-Za-z_/.][\w/.-]*", text, re.ASCII):
        return text  # a path cannot be mistaken for a number, a truth value or null
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"
