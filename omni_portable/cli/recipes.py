"""`omni-portable recipes`: the packaged recipes by name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("recipes", help="list the packaged recipes", description="List packaged recipes.")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.config.recipes import find_recipe, list_recipes

    names = list_recipes()
    width = max((len(name) for name in names), default=0)
    for name in names:
        print(f"{name:<{width}}  {first_comment(find_recipe(name))}".rstrip())
    return 0


def first_comment(path: Path) -> str:
    """The recipe's first comment line, which says what it is."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
