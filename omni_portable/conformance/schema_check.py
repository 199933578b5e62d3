"""Compares plain data with a JSON schema: the keywords that our published schemas use, and an error for any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf
    ),
}
ANNOTATIONS = ("$schema", "$id", "$defs", "title", "description")


def problems(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with `value`, each by its place ('checks[3].status'); nothing where it fits.

    Raises:
        ValueError: the schema uses a keyword that is not known here.
    """
    return _check(value, schema, schema, "")


def _check(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    for keyword, wanted in schema.items():
        if keyword in ANNOTATIONS:
            continue
        if keyword not in _KEYWORDS:
            raise ValueError(f"the schema keyword '{keyword}' is not known here")
        yield from _KEYWORDS[keyword](value, wanted, schema, root, place)


def _ref(value: Any, wanted: str, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    yield from _check(value, root["$defs"][wanted.removeprefix("#/$defs/")], root, place)


def _type(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not any(TYPES[name](value) for name in names):
        yield f"{_shown(place)} is {_short(value)}, not {' or '.join(names)}"


def _enum(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if not any(_equal(value, one) for one in wanted):
        yield f"{_shown(place)} is {_short(value)}, not one of {', '.join(map(repr, wanted))}"


def _const(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if not _equal(value, wanted):
        yield f"{_shown(place)} is {_short(value)}, not {wanted!r}"


def _any_of(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if all(any(True for _ in _check(value, one, root, place)) for one in wanted):
        yield f"{_shown(place)} is {_short(value)}, which none of its alternatives allows"


def _required(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{_join(place, name)} is missing" for name in wanted if name not in value)


def _properties(
    value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str
) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in wanted.items():
            if name in value:
                yield from _check(value[name], inner, root, _join(place, name))


def _additional(
    value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str
) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    for name in value:
        if name in schema.get("properties", ()):
            continue
        if wanted is False:
            yield f"{_join(place, name)} is no key that belongs here"
        elif isinstance(wanted, dict):
            yield from _check(value[name], wanted, root, _join(place, name))


def _items(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check(item, wanted, root, f"{place}[{index}]")


def _least(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    size = value if TYPES["number"](value) else wanted
    if size < wanted:
        yield f"{_shown(place)} is {_short(value)}, below {wanted}"


def _length(value: Any, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if isinstance(value, (str, list)) and len(value) < wanted:
        yield f"{_shown(place)} is empty" if not value else f"{_shown(place)} has {len(value)} parts, below {wanted}"


_KEYWORDS: Mapping[str, Callable[[Any, Any, Mapping[str, Any], Mapping[str, Any], str], Iterator[str]]] = {
    "$ref": _ref,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "anyOf": _any_of,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "minimum": _least,
    "minLength": _length,
    "minItems": _length,
}


def _equal(value: Any, other: Any) -> bool:
    """JSON's equality: true is not 1."""
    return type(value) is type(other) and bool(value == other)


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(place: str) -> str:
    return place or "the whole"


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
