"""Tables of keys and capabilities for the generated pages: the types and texts of options dataclasses. No torch."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from omni_portable.config.convert import MISSING
from omni_portable.config.rules import CHOICES, RANGES

NOTE = "<!-- Made by ci/generate_docs.py from the code. Do not edit: change the code, then run that program. -->\n"
HEAD = ("| key | type | default | meaning |", "|---|---|---|---|")
NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "section"}


def key_table(cls: type, prefix: str) -> list[str]:
    """A table of the keys of one dataclass; sections below it are left out."""
    docs, hints = field_docs(cls), typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if not dataclasses.is_dataclass(hints[field.name])]
    missing = [field.name for field in fields if field.name not in docs]
    if missing:
        raise ValueError(f"{cls.__module__}.{cls.__name__}: no string literal under {', '.join(missing)}")
    lines = list(HEAD)
    for field in fields:
        key = prefix + field.name
        meaning = docs[field.name].replace("<", "\\<") + allowed(key)
        lines.append(row([f"`{key}`", type_name(hints[field.name]), default(field), meaning]))
    return lines


def field_docs(cls: type) -> dict[str, str]:
    """Field -> the string literal under it, in one line; inherited fields included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


def type_name(hint: Any) -> str:
    """A type in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(arg) for arg in args)
    if origin is list:
        return f"list of {type_name(args[0])}s"
    if origin is dict:
        if dataclasses.is_dataclass(args[1]):
            return "section of sections, by name"
        return "section" if args[1] is Any else f"section of {type_name(args[1])}s"
    return NAMES[hint]


def default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING or value == MISSING:
        return "must be given"
    if value == "" and isinstance(value, str):
        return "empty"
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown.replace(chr(39), '')}`"


def allowed(key: str) -> str:
    """What a value may be, where the rules restrict it."""
    if key in CHOICES:
        return f" One of {', '.join(f'`{name}`' for name in CHOICES[key])}."
    return f" Must be {RANGES[key]}." if key in RANGES else ""


def capability(value: Any) -> str:
    """A capability's value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"`{name}` ({kind})" for name, kind in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(f"`{item}`" for item in value) or "none"
    return f"`{value}`"


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
