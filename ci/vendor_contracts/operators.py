"""Signatures of operators that compiled code registers with torch, from the schema strings in its libraries.

A library that calls `TORCH_LIBRARY` holds each operator's schema as text: `name(Tensor query, *, int heads=1) -> ...`.
Those strings are what torch parses when the library loads, so they are the operator's real signature.
"""

from __future__ import annotations

import re

from ci.vendor_contracts.tree import Tree

SCHEMA = re.compile(r"(?:\w+::)?(?P<name>[A-Za-z_]\w*)(?P<overload>\.\w+)?\((?P<parameters>.*)\) -> .+")
PARAMETER = re.compile(r"(?P<type>[\w.:<>?!|()\[\] ]+?)[ ](?P<name>\w+)(?:\s*=\s*(?P<default>.+))?")


def operators(tree: Tree, library: str) -> dict[str, str]:
    """Operator -> parameters, of every schema in a shared library; overloads other than the default one are left out.

    Args:
        tree: the distribution.
        library: path of the shared library in it.

    Raises:
        ValueError: the library holds no schema at all.
    """
    found: dict[str, str] = {}
    for line in tree.files.read(library).split(b"\0"):
        match = SCHEMA.fullmatch(line.decode()) if b") -> " in line and line.isascii() else None
        if match is None or match["overload"] or match["name"] in found:
            continue
        if (text := parameters_text(match["parameters"])) is not None:
            found[match["name"]] = text
    if not found:
        raise ValueError(f"no operator schema in {library} of {tree.origin}")
    return found


def parameters_text(schema: str) -> str | None:
    """The parameters of a schema as text; None where they are no schema's.

    'Tensor query, *, float scale=1.' -> 'query, *, scale=...'
    """
    names = []
    for part in _split(schema):
        if part == "*":
            names.append("*")
        elif match := PARAMETER.fullmatch(part):
            names.append(match["name"] + ("=..." if match["default"] is not None else ""))
        else:
            return None
    return ", ".join(names)


def _split(schema: str) -> list[str]:
    """Top-level commas only: lists and alias annotations hold commas of their own."""
    parts, depth, current = [], 0, ""
    for character in schema:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()] if current.strip() else parts
