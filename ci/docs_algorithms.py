"""docs/algorithms.md and a page per algorithm: equations from docstrings, keys from options, recipes that use it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ci.docs_models import models_of
from ci.docs_tables import NOTE, key_table, row
from omni_portable.config.catalogue import RecipeEntry
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.registry import PluginSpec

COMPARISON = "docs/algorithms/_comparison.md"
"""Written by hand; stands at the end of the index."""
FOLDER = "omni_portable.algorithms."
EQUATIONS = ("loss", "losses", "kl", "advantages", "noise_levels", "pairs")
"""Parts of the names of modules whose functions hold equations."""
LEFT_OUT = {"group_members", "masked", "row_weights", "total_weight", "sequence_log_prob"}
STANDS_FOR = {"advantages_by": ("omni_portable.algorithms.advantages", "group_advantages")}
"""Functions that only pass options on -> the one that computes."""
EMPTY = {
    "All samples, in order.",
    "As they were scored.",
    "Everything is in the options.",
    "What differs from Flow-GRPO is in the options' defaults.",
    "What differs from GRPO is in the options' defaults.",
}
"""Docstrings of defaults, which tell nothing of an algorithm."""
_SECTION = re.compile(r"^(?:Args|Returns|Raises):\n(?:[ \t]+.*\n?|\n(?=[ \t]))*", re.MULTILINE)
NEEDS: Mapping[str, str] = {
    "reference_policy": "reference policy (the weights before training)",
    "old_policy": "old policy (that drew the rollout, or its moving average)",
    "teacher": "teacher (`model.teachers`)",
    "preference_pairs": "preference pairs",
    "fake_score": "fake network (a second trained copy)",
    "ema": "moving average of the weights",
}
KERNELS: Mapping[str, str] = {
    "sde": "the flow SDE (its noise follows the schedule)",
    "cps": "coefficients-preserving sampling (keeps the marginals)",
    "dance_sde": "constant noise",
}


@dataclasses.dataclass(frozen=True)
class Part:
    """One documented piece of an algorithm: where it stands, and its docstring."""

    name: str
    text: str


def algorithm_pages(
    algorithms: Sequence[PluginSpec], families: Sequence[PluginSpec], entries: Sequence[RecipeEntry], root: Path
) -> dict[str, str]:
    """Path below the root -> content, the index first."""
    pages = {"docs/algorithms.md": index_page(algorithms, entries, root)}
    for spec in algorithms:
        used = [entry for entry in entries if entry.algorithm == spec.name]
        pages[f"docs/algorithms/{spec.name}.md"] = algorithm_page(spec, families, used, entries)
    return pages


def index_page(algorithms: Sequence[PluginSpec], entries: Sequence[RecipeEntry], root: Path) -> str:
    lines = [
        "# Algorithms\n",
        NOTE,
        "A recipe names one with `algorithm.name`. Which models each trains is in [models](models.md), the arithmetic",
        "they share in [numerics](numerics.md), how to add one in [add an algorithm](add-an-algorithm.md).\n",
        "| algorithm | trains | what it is | needs by default | recipes |",
        "|---|---|---|---|---|",
    ]
    for spec in algorithms:
        count = sum(entry.algorithm == spec.name for entry in entries)
        needs = [NEEDS[name].partition(" (")[0] for name in needed(spec)]
        what = spec.summary[:1].upper() + spec.summary[1:]
        page = f"[`{spec.name}`](algorithms/{spec.name}.md)"
        lines.append(row([page, str(spec.capabilities["kind"]), what, ", ".join(needs) or "-", str(count)]))
    comparison = root / COMPARISON
    if comparison.is_file():
        lines += ["", comparison.read_text(encoding="utf-8").strip()]
    return "\n".join(lines).rstrip() + "\n"


def algorithm_page(
    spec: PluginSpec, families: Sequence[PluginSpec], used: Sequence[RecipeEntry], entries: Sequence[RecipeEntry]
) -> str:
    """Everything about one algorithm."""
    module = spec.target.partition(":")[0]
    lines = [f"# {spec.name}\n", NOTE, f"{spec.summary}.\n", "## Objective\n"]
    lines += ["```text", *_docstring(_tree(module.rpartition(".")[0])), "```\n"]
    if found := parts(spec):
        lines += ["## Its parts in the code\n"]
    for part in found:
        lines += [f"`{part.name}`:\n", "```text", part.text, "```\n"]
    lines += ["## What it needs\n", *requirements(spec), ""]
    if kinds := spec.capabilities.get("step_kinds"):
        usual = getattr(spec.options(), "step_kind", "")
        lines += ["## Step kernels\n", "See [numerics](../numerics.md#step-kernels).\n"]
        lines += [f"- `{kind}`: {KERNELS[kind]}{' (default)' if kind == usual else ''}" for kind in kinds] + [""]
    lines += ["## Keys\n", *key_table(spec.options, "algorithm."), "", "## Models\n"]
    lines += [f"- {text}" for text in models_of(spec, families, entries)]
    lines += ["", "## Recipes\n"]
    lines += [f"- [`{entry.name}`](../recipes.md#{entry.name.replace('/', '')}): {entry.summary}" for entry in used]
    return "\n".join([*lines, *([] if used else ["None is packaged."])]).rstrip() + "\n"


def requirements(spec: PluginSpec) -> list[str]:
    """What an engine keeps and the rollout must bring, with default options."""
    needs, facts = needed(spec), spec.capabilities
    say = getattr(spec.options, "requires", None)
    text = " ".join((say.__doc__ or "").split()) if say else ""
    lines = [f"- {what}: {'yes' if name in needs else 'no'}" for name, what in NEEDS.items()]
    lines.append(f"- log-probs of the rollout: {'yes' if facts.get('needs_log_probs') else 'no'}")
    lines.append(f"- samples of a prompt (`rollout.n`): {facts.get('min_group_size', 1)} or more")
    if "trained_per_group" in facts:
        lines.append(f"- samples of a prompt that are trained on: {facts['trained_per_group']}")
    if facts.get("whole_groups"):
        lines.append("- all samples of a prompt stay in one micro-batch")
    head = "With default options" + (f"; options may ask for more. {text}" if text else ".")
    return [head + "\n", *lines]


def needed(spec: PluginSpec) -> list[str]:
    """Names of what `Requires` asks for with default options."""
    say = getattr(spec.options(), "requires", None)
    found = say() if callable(say) else Requires()
    return [name for name in NEEDS if getattr(found, name, False)]


def parts(spec: PluginSpec) -> list[Part]:
    """Docstrings of the algorithm's class and methods, then of the functions that compute, its own before inherited;
    only what it uses and what says something, without the arguments."""
    module, _, name = spec.target.partition(":")
    found: dict[str, Part] = {}
    methods: set[str] = set()
    about = [
        Part(node.name, text)
        for node in _tree(module).body
        if isinstance(node, ast.ClassDef) and node.name == name and not (text := _text(node)).startswith("See ")
    ]
    functions: dict[tuple[str, str], None] = {}
    for where, node in _lineage(module, name):
        imported = _imports(_tree(where))
        for item in node.body:
            if not isinstance(item, ast.FunctionDef) or item.name in methods:
                continue
            source = ast.unparse(item)
            if f"super().{item.name}(" not in source:
                methods.add(item.name)
            said = ast.get_docstring(item) or ""
            if said and not said.startswith("See ") and "NotImplementedError" not in source:
                found.setdefault(item.name, Part(f"{node.name}.{item.name}", said))
            names = [each.id for each in ast.walk(item) if isinstance(each, ast.Name)]
            functions |= {_stands(imported[each], each): None for each in names if each in imported}
    wanted = ("loss", "policy_loss", "policy_terms", "advantages", "select", "shape_rewards")
    own = [found[each] for each in wanted if each in found]
    computing = [part for where, name in functions if (part := _function(where, name)) is not None]
    shown = [Part(part.name, without_arguments(part.text)) for part in [*about, *own, *computing]]
    trains = uses_advantages(spec)
    return [
        part
        for part in dict.fromkeys(shown)
        if part.text not in EMPTY and (trains or "advantages" not in part.name.rpartition(".")[2])
    ]


def without_arguments(text: str) -> str:
    """A docstring without its sections of arguments, results and errors."""
    return re.sub(r"\n{3,}", "\n\n", _SECTION.sub("", text)).strip()


def uses_advantages(spec: PluginSpec) -> bool:
    """Whether the loss reads the advantage of a row, in the methods that the algorithm ends up with."""
    module, _, name = spec.target.partition(":")
    seen: set[str] = set()
    for _, node in _lineage(module, name):
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name not in seen:
                source = ast.unparse(item)
                if f"super().{item.name}(" not in source:
                    seen.add(item.name)
                if ".advantage" in re.sub(r"\.advantages\b", "", source):
                    return True
    return False


def _lineage(module: str, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """(module, class) of an algorithm and of the classes it is made of, nearest first."""
    tree = _tree(module)
    local = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in local:
        return
    yield module, local[name]
    imported = _imports(tree)
    for base in local[name].bases:
        if isinstance(base, ast.Name):
            yield from _lineage(imported.get(base.id, module), base.id)


def _stands(module: str, name: str) -> tuple[str, str]:
    return STANDS_FOR.get(name, (module, name))


def _function(module: str, name: str) -> Part | None:
    """The documented function of a module of equations; where one only refers to another, that one."""
    last = module.removeprefix(FOLDER)
    if name in LEFT_OUT or not any(part in last for part in EQUATIONS):
        return None
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef) and node.name == name and (text := ast.get_docstring(node)):
            other = re.match(r":func:`(\w+)`", text)
            return _function(module, other.group(1)) if other else Part(name, text)
    return None


def _imports(tree: ast.Module) -> dict[str, str]:
    """Name -> module, of what a module takes from the algorithms' package."""
    return {
        alias.name: node.module or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FOLDER)
        for alias in node.names
    }


@functools.cache
def _tree(module: str) -> ast.Module:
    """A module's source, parsed; not imported, since it may need torch."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"the module {module} was not found")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _text(node: ast.ClassDef) -> str:
    return ast.get_docstring(node) or "See its options."


def _docstring(tree: ast.Module) -> list[str]:
    return [
        re.sub(r"\s*(Loads|imports)\s+without\s+torch\.|\s*Torch-free\.", "", ast.get_docstring(tree) or "").rstrip()
    ]
