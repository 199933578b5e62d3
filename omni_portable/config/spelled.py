"""Numbers that YAML reads otherwise than they look: 1_2 is 12, 010 is 8, 1:30 is 90.

YAML 1.1 takes an underscore for nothing, a leading zero for base 8 and a colon for base 60. What was written is lost
once it is loaded; here the files are asked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from omni_portable.config.recipes import extended

INTEGER, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
ODD = re.compile(r"(?<![\w.])[+-]?(?:\d+_|0\w|\d+:\d)|\+\d|-0\b")
"""Texts without this have no such number; most recipes need not be asked further."""
Spelled = dict[str, frozenset[tuple[str, int | float]]]
"""Dotted key -> (text, number) of each number that a file gives it in an odd spelling."""


def spelled(path: Path) -> Spelled:
    """Numbers in odd spellings of a recipe and of those that it extends; files that cannot be read have none."""
    found: dict[str, set[tuple[str, int | float]]] = {}
    waiting, seen = [path], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            text = file.read_text(encoding="utf-8")
            content = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue  # composing the recipe says what is wrong with it
        for key, number in _numbers(yaml.compose(text, Loader=yaml.SafeLoader)) if ODD.search(text) else ():
            found.setdefault(key, set()).add(number)
        entries = content.get("defaults") if isinstance(content, dict) else None
        waiting += [
            other for entry in (entries if isinstance(entries, list) else ()) for other in extended(file, entry)
        ]
    return {key: frozenset(numbers) for key, numbers in found.items()}


def misread(text: str) -> bool:
    """Whether a number is in base 8 or 60 without looking like it; underscores only group digits."""
    digits = text.lstrip("+-").replace("_", "")
    return ":" in text or (len(digits) > 1 and digits[0] == "0" and digits.isdigit())


def _numbers(node: yaml.Node | None, key: str = "") -> Iterator[tuple[str, tuple[str, int | float]]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _numbers(value, f"{key}.{name.value}" if key else str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _numbers(item, f"{key}[{index}]")
    elif isinstance(node, yaml.ScalarNode) and node.tag in (INTEGER, FLOAT) and not node.style:
        number = yaml.safe_load(node.value)
        odd = str(number) != node.value if node.tag == INTEGER else ":" in node.value
        if odd and isinstance(number, int | float):
            yield key, (node.value, number)
