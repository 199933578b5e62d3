"""`omni-portable recipes [list|show]`: the packaged recipes, and what one of them resolves to."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

EXAMPLES = """examples:
  omni-portable recipes                                        every recipe and what it is
  omni-portable recipes list --family sd3 --tiny               those that run on any machine
  omni-portable recipes list gspo mmk12 qwen2.5-vl             those that have all these words in name, summary,
                                                               source, model, algorithm or rewards
  omni-portable recipes list --algorithm gspo --json           for programs
  omni-portable recipes show qwen_image/flow_grpo_ocr          the whole configuration it resolves to
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "recipes",
        help="list the packaged recipes, show one",
        description="List the packaged recipes, or show what one resolves to. Without a command: list.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=list_all, family=None, algorithm=None, size=None, json=False, words=[])
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    listing = commands.add_parser("list", help="names, and what they are", description="List packaged recipes.")
    listing.add_argument(
        "words", metavar="WORD", nargs="*", help="only those that have it in name, summary, model, ..."
    )
    listing.add_argument("--family", metavar="F", help="only those of a model family")
    listing.add_argument("--algorithm", metavar="A", help="only those of an algorithm")
    sizes = listing.add_mutually_exclusive_group()
    sizes.add_argument("--tiny", dest="size", action="store_const", const="tiny", help="only those for any machine")
    sizes.add_argument("--full", dest="size", action="store_const", const="full", help="only those of published size")
    listing.add_argument("--json", action="store_true", help="a list of objects, for programs")
    listing.set_defaults(handler=list_all)
    showing = commands.add_parser(
        "show", help="the resolved YAML of one", description="Print the whole configuration of a recipe as YAML."
    )
    showing.add_argument("name", metavar="NAME", help="a name that `recipes list` gives, or a .yaml file")
    showing.set_defaults(handler=show)


def list_all(arguments: argparse.Namespace) -> int:
    """Print a line, or an object, for each recipe that fits.

    Raises:
        ConfigError: a family or an algorithm that is not installed.
    """
    from omni_portable.config.catalogue import catalogue
    from omni_portable.config.plugins import plugin_spec

    for kind, option, name in (
        ("model", "--family", arguments.family),
        ("algorithm", "--algorithm", arguments.algorithm),
    ):
        if name is not None:
            plugin_spec(kind, name, option)
    words = [word for text in arguments.words for word in text.split()]
    filters = {"family": arguments.family, "algorithm": arguments.algorithm, "size": arguments.size}
    entries = catalogue(**filters, words=words)
    if not entries:
        print(f"no packaged recipe fits{_why(words, filters)}", file=sys.stderr)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=2))
        return 0
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        print(f"{entry.name:<{width}}  {entry.summary}".rstrip())
    return 0


def _why(words: Sequence[str], filters: Mapping[str, Any]) -> str:
    """What nothing was found for, and what might be meant."""
    from omni_portable.config.catalogue import catalogue, holds
    from omni_portable.contracts.spelling import did_you_mean

    asked = [*words, *(f"{name}={value}" for name, value in filters.items() if value is not None)]
    entries = catalogue()
    known = sorted({part for entry in entries for part in entry.name.replace("/", "_").split("_")})
    absent = [word for word in words if not any(holds(entry, word) for entry in entries)]
    hints = "".join(f"; none has '{word}' in it. {did_you_mean(word, known)}".rstrip(" .") for word in absent)
    return f": {', '.join(asked)}{hints}"


def show(arguments: argparse.Namespace) -> int:
    """Print the resolved configuration; `omni-portable train` takes it back as a recipe. Comments at its head say what
    a packaged one is, whose settings it has, and in what it is not like that source."""
    from omni_portable.config.loader import load_config, to_yaml

    text = to_yaml(load_config(arguments.name))
    print("".join(f"# {line}\n" for line in about(arguments.name)) + text, end="")
    return 0


def about(name: str) -> list[str]:
    """What the catalogue says of a recipe, as lines; nothing for a file that is not packaged."""
    from omni_portable.config.catalogue import list_recipes, recipe_entry
    from omni_portable.config.recipes import find_recipe, recipe_root

    path, names = find_recipe(name), list_recipes()
    packaged = [known for known in names if (recipe_root() / f"{known}.yaml").resolve() == path.resolve()]
    if not packaged:
        return []
    entry = recipe_entry(packaged[0], names)
    differs = [f"differs from the source: {text}" for text in entry.differs]
    return [f"{entry.name}: {entry.summary}", f"settings of: {entry.source}", *differs, f"status: {entry.status}"]
