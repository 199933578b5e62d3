"""Comparing answers as texts and as numbers, which settles most of them without a computer algebra system."""

from __future__ import annotations

import re
from fractions import Fraction

_DROPPED = re.compile(r"\\left|\\right|\\[,;!: ]|\\displaystyle|\\mathrm|\\text(?=\{)|\^\{?\\circ\}?|\\circ|°|\$|\s")
_FRACTION = re.compile(r"\\[dt]?frac(?:\{(-?\d+)\}|(\d))(?:\{(-?\d+)\}|(\d))")
_PLAIN = re.compile(r"(-?\d*\.?\d+)(?:/(-?\d*\.?\d+))?(%)?")
_BRACED = re.compile(r"\{([^{}]*)\}")
MAX_DIGITS = 60
"""Numbers longer than this are compared as texts alone."""


def tidy(answer: str) -> str:
    """Without spacing, dollars, degree signs, separators of thousands, and a full stop at the end."""
    text = _DROPPED.sub("", answer.strip().rstrip("."))
    if (whole := _BRACED.fullmatch(text)) is not None:
        text = whole.group(1)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).replace("\\%", "%").replace("−", "-")


def as_number(answer: str) -> Fraction | None:
    """The exact value of a whole number, decimal, fraction or percentage; None for anything else."""
    text = _FRACTION.sub(lambda m: f"{m[1] or m[2]}/{m[3] or m[4]}", tidy(answer))
    found = _PLAIN.fullmatch(text)
    if found is None or len(text) > MAX_DIGITS:
        return None
    below = Fraction(found.group(2) or 1)
    if below == 0:
        return None
    return Fraction(found.group(1)) / below / (100 if found.group(3) else 1)


def settled(wanted: str, given: str) -> bool | None:
    """Whether two answers are equal, where their texts or their numbers tell; None where they do not."""
    if tidy(wanted) == tidy(given):
        return bool(tidy(wanted))
    left, right = as_number(wanted), as_number(given)
    return None if left is None or right is None else left == right
