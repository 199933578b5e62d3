"""Comparing recognised text with the text that was asked for."""

from __future__ import annotations

import unicodedata
from typing import Literal

Keep = Literal["alphanumeric", "visible", "all"]
"""Which characters count: letters and digits, everything but white space, or everything."""


def normalise(text: str, keep: Keep, case_sensitive: bool) -> str:
    """`text` in Unicode's compatibility form (full-width letters become plain), folded and reduced to what counts."""
    text = unicodedata.normalize("NFKC", text)
    if not case_sensitive:
        text = text.casefold()
    if keep == "alphanumeric":
        return "".join(c for c in text if c.isalnum())
    if keep == "visible":
        return "".join(text.split())
    return text


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: the fewest insertions, deletions and replacements that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def similarity(a: str, b: str) -> float:
    """1 - edit distance / length of the longer text, in [0, 1]; 1 for two empty texts."""
    longer = max(len(a), len(b))
    return 1.0 if longer == 0 else max(0.0, 1.0 - edit_distance(a, b) / longer)
