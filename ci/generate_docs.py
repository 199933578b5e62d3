"""Makes the reference pages from the code: configuration, plugins, recipes, models and algorithms, all below docs/, and
the list of what exists in README.md.

    python ci/generate_docs.py            write the pages
    python ci/generate_docs.py --check    compare them with the code; 1 if one has drifted

Meanings are the string literals under the fields of `config/schema.py` and of each plugin's options; a field without
one is an error. Only plugins of this repository's pyproject.toml are described, whatever else is installed. No torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ci.docs_algorithms import algorithm_pages  # noqa: E402
from ci.docs_models import models_page  # noqa: E402
from ci.docs_readme import readme_page  # noqa: E402
from ci.docs_tables import NOTE, allowed, capability, key_table, row  # noqa: E402
from omni_portable.config.catalogue import TESTED, catalogue  # noqa: E402
from omni_portable.config.loader import load_config  # noqa: E402
from omni_portable.config.plan import plan_text  # noqa: E402
from omni_portable.config.schema import RunConfig  # noqa: E402
from omni_portable.contracts.registry import GROUPS, PluginSpec  # noqa: E402

__all__ = ["allowed", "drift", "key_table", "main", "pages"]

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


def pages(root: Path) -> dict[str, str]:
    """Path below `root` -> content."""
    specs = plugin_specs(root)
    return {
        "docs/configuration.md": configuration_page(specs),
        "docs/plugins.md": plugins_page(specs),
        "docs/recipes.md": recipes_page(),
        "README.md": readme_page(specs, root),
        "docs/models.md": models_page(specs["model"], specs["algorithm"], catalogue()),
        **algorithm_pages(specs["algorithm"], specs["model"], catalogue(), root),
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


@functools.cache
def recipes_page() -> str:
    """The table of packaged recipes, then the plan of each. Composing them takes a while: once per process."""
    lines = [
        "# Recipes\n",
        NOTE,
        "The packaged recipes. Run one with `omni-portable train NAME`; `omni-portable recipes show NAME` prints all",
        "its keys, `omni-portable recipes list --json` this table. Names that end in `_tiny` run on any machine, no",
        f"download needed; the tests train each of them ({TESTED}). The others have published sizes and were not",
        "run: their configuration and plan are checked, and where there is a tiny twin, the tests train that one.",
        "Rewards that the sources take from models are not packaged; what stands for them is said with each recipe.\n",
        "| recipe | algorithm | trains | rewards | engine, device | status | settings of |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in catalogue():
        cells = [
            f"[`{entry.name}`](#{anchor(entry.name)})",
            entry.algorithm,
            entry.trains,
            ", ".join(entry.rewards),
            f"{entry.engine}, {entry.device}",
            entry.status,
            entry.source + (f" (with [differences](#{anchor(entry.name)}))" if entry.differs else ""),
        ]
        lines.append(row(cells))
    for entry in catalogue():
        plan = plan_text(load_config(entry.name))
        lines += ["", f"## {entry.name}\n", f"{entry.summary}\n"]
        lines += [f"- differs from its source: {text}" for text in entry.differs] + [""] * bool(entry.differs)
        lines += ["```text", plan, "```"]
    return "\n".join(lines).rstrip() + "\n"


def anchor(recipe: str) -> str:
    """Of a recipe's heading."""
    return recipe.replace("/", "")


def sections(cls: type, key: str = "") -> Iterator[tuple[str, type]]:
    """(dotted key, dataclass) of a section and of all sections below it."""
    yield key, cls
    for name, hint in typing.get_type_hints(cls).items():
        where = f"{key}.{name}" if key else name
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from sections(hint, where)
        elif typing.get_origin(hint) is dict and dataclasses.is_dataclass(named := typing.get_args(hint)[1]):
            yield from sections(named, f"{where}.NAME")  # type: ignore[arg-type]


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
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
