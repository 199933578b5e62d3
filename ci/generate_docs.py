"""Makes the reference pages from the code: docs/configuration.md, docs/plugins.md and docs/recipes.md.

    python ci/generate_docs.py            write the pages
    python ci/generate_docs.py --check    compare them with the code; 1 if one has drifted

Meanings are the string literals under the fields of `config/schema.py` and of each plugin's options; a field without
one is an error. Only plugins of this repository's pyproject.toml are described, whatever else is installed. No torch.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import inspect
import sys
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_portable.config.convert import MISSING
from omni_portable.config.loader import load_config
from omni_portable.config.plan import plan_text
from omni_portable.config.recipes import find_recipe, list_recipes
from omni_portable.config.rules import CHOICES, RANGES
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.registry import GROUPS, PluginSpec

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Made by ci/generate_docs.py from the code. Do not edit: change the code, then run that program. -->\n"
WHERE: Mapping[str, tuple[str, str]] = {
    "device": ("device.name", ""),
    "model": ("model.family", "model.options."),
    "algorithm": ("algorithm.name", "algorithm."),
    "rollout_engine": ("rollout.engine", "rollout.options."),
    "train_engine": ("actor.engine", "actor.options."),
    "reward": ("reward.scorers.NAME.kind", "reward.scorers.NAME."),
    "data_plane": ("dataplane.name", "dataplane.options."),
    "launcher": ("launcher.name", "launcher.options."),
    "logger": ("trainer.loggers", ""),
}
"""Kind of plugin -> the key that names one, and the prefix of its options ('' where a recipe cannot set any)."""
HEAD = ("| key | type | default | meaning |", "|---|---|---|---|")
NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "section"}


def pages(root: Path) -> dict[str, str]:
    """Path below `root` -> content."""
    specs = plugin_specs(root)
    return {
        "docs/configuration.md": configuration_page(specs),
        "docs/plugins.md": plugins_page(specs),
        "docs/recipes.md": recipes_page(),
    }


def plugin_specs(root: Path) -> dict[str, list[PluginSpec]]:
    """Kind -> specs of this repository's entry points, by name."""
    groups = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    found: dict[str, list[PluginSpec]] = {}
    for kind, group in GROUPS.items():
        targets = [target.split(":") for _, target in sorted(groups.get(group, {}).items())]
        found[kind] = [getattr(importlib.import_module(module), name) for module, name in targets]
    return found


def configuration_page(specs: Mapping[str, Sequence[PluginSpec]]) -> str:
    """Every key of a recipe, section by section, then the options of every plugin."""
    lines = [
        "# Configuration\n",
        NOTE,
        "Every key of a recipe. Set a key in the recipe's YAML, or on the command line as `key=value`. A key that is",
        "not listed here is refused. `omni-portable train RECIPE --dry-run` prints the resolved values.\n",
    ]
    for key, cls in sections(RunConfig):
        lines += [f"## {key or 'Top level'}\n", *key_table(cls, f"{key}." if key else ""), ""]
    lines += ["## Options of plugins\n", "Keys of a plugin are accepted only where that plugin is named.\n"]
    for kind, (named_by, prefix) in WHERE.items():
        for spec in specs[kind] if prefix else ():
            if dataclasses.fields(spec.options):
                title = f"### {kind.replace('_', ' ')} `{spec.name}`\n"
                lines += [title, f"With `{named_by}: {spec.name}`.\n", *key_table(spec.options, prefix), ""]
    return "\n".join(lines).rstrip() + "\n"


def plugins_page(specs: Mapping[str, Sequence[PluginSpec]]) -> str:
    """Every plugin: name, summary, code, capabilities."""
    lines = [
        "# Plugins\n",
        NOTE,
        "What a recipe may name. All parts are reached through entry points; a package of yours that registers one",
        "under the same group is used in the same way. Capabilities are compared before anything heavy loads.\n",
    ]
    for kind, (key, _) in WHERE.items():
        lines += [f"## {kind.replace('_', ' ')}\n", f"Named by `{key}`. Entry-point group: `{GROUPS[kind]}`.\n"]
        for spec in specs[kind]:
            lines.append(f"- **`{spec.name}`**: {spec.summary}")
            lines.append(f"  - code: `{spec.target}`")
            lines += [f"  - {name}: {capability(value)}" for name, value in spec.capabilities.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def recipes_page() -> str:
    """The matrix of packaged recipes, then the plan of each."""
    names = list_recipes()
    configs = {name: load_config(name) for name in names}
    lines = [
        "# Recipes\n",
        NOTE,
        "The packaged recipes. Run one with `omni-portable train NAME`; `device.name` is free unless the table names",
        "one.\n",
        "| recipe | model | algorithm | step kernel | rewards | trains | device |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, config in configs.items():
        rank = config.model.lora.rank
        cells = [
            f"`{name}`",
            config.model.family,
            config.algorithm["name"],
            config.algorithm.get("step_kind", "the algorithm's"),
            ", ".join(section["kind"] for section in config.reward.scorers.values()),
            f"LoRA {rank}" if rank else "all weights",
            config.device.name,
        ]
        lines.append(row(cells))
    for name, config in configs.items():
        lines += ["", f"## {name}\n", f"{first_comment(find_recipe(name))}\n", "```text", plan_text(config), "```"]
    return "\n".join(lines).rstrip() + "\n"


def sections(cls: type, key: str = "") -> Iterator[tuple[str, type]]:
    """(dotted key, dataclass) of a section and of all sections below it."""
    yield key, cls
    for name, hint in typing.get_type_hints(cls).items():
        where = f"{key}.{name}" if key else name
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from sections(hint, where)
        elif typing.get_origin(hint) is dict and dataclasses.is_dataclass(named := typing.get_args(hint)[1]):
            yield from sections(named, f"{where}.NAME")  # type: ignore[arg-type]


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


def first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()


def drift(root: Path) -> list[str]:
    """Differences between the pages on disk and the code, as lines of a diff."""
    found: list[str] = []
    for name, text in pages(root).items():
        path = root / name
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        labels = (f"{name} on disk", f"{name} by the code")
        found += difflib.unified_diff(old.splitlines(), text.splitlines(), *labels, n=0, lineterm="")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    if arguments:
        found = drift(ROOT)
        print(
            "\n".join([*found, "run: python ci/generate_docs.py"] if found else ["the generated pages are up to date"])
        )
        return 1 if found else 0
    for name, text in pages(ROOT).items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
