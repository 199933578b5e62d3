"""Finding the answer inside a response: tags, boxes, letters, numbers. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

BOX = "\\boxed{"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_CHOICE = re.compile(r"\(?([A-Za-z])\)?(?:[.):,].*)?", re.DOTALL)
_LONE_LETTER = re.compile(r"(?<![A-Za-z])([A-H])(?![A-Za-z])")
_OPTION = re.compile(r"\s*([A-Za-z])\s*[.)、:]\s*(.*\S)\s*", re.DOTALL)


def first_tag(text: str, tag: str = "answer") -> str | None:
    """What stands inside the first <tag>...</tag>, without white space around it; None where there is no such pair."""
    found = re.search(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, re.DOTALL)
    return found.group(1).strip() if found else None


def single_tag(text: str, tag: str = "answer") -> bool:
    """Whether there is exactly one pair of the tag."""
    return text.count(f"<{tag}>") == 1 == text.count(f"</{tag}>") and first_tag(text, tag) is not None


def last_boxed(text: str) -> str | None:
    """What stands inside the last \\boxed{...}, braces balanced; None where there is none, or it is not closed."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth, begin = 1, start + len(BOX)
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place].strip()
    return None


def choice_letter(text: str) -> str | None:
    """The letter of 'B', '(b)', 'B.' or 'B. a dog', upper case; None for anything else."""
    found = _CHOICE.fullmatch(text.strip())
    return found.group(1).upper() if found else None


def last_letter(text: str) -> str | None:
    """The last capital letter from A to H that stands alone."""
    letters = _LONE_LETTER.findall(text)
    return letters[-1] if letters else None


def last_number(text: str) -> str | None:
    """The last number in digits."""
    numbers = NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else None


def option_texts(options: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Letter -> text, from 'A. TEXT' lines or a mapping; lines of another form are left out."""
    if isinstance(options, Mapping):
        return {str(letter).upper(): str(text) for letter, text in options.items()}
    found = (_OPTION.fullmatch(option) for option in options)
    return {match.group(1).upper(): match.group(2) for match in found if match}
