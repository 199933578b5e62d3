"""What the packaged recipes are, without composing them: the fields of `omni-portable recipes list --json`.

A recipe says of itself, in the comment at its head, what it is (its first sentence) and whose settings it has (a line
'Source: ...'). The rest is read from its keys. Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from omni_portable.config.recipes import extended, find_recipe, list_recipes
from omni_portable.config.schema import RunConfig

TINY = "_tiny"
"""How the names of recipes end that run anywhere in seconds or minutes; without it, that of the recipe they stand for.
Every one of them is run by the tests."""
TESTED, PLANNED = "tested tiny on CPU", "planned"
OWN = "Omni-Portable"
_SENTENCE = re.compile(r"(?<!\bDr)\.\s+(?=[A-Z'\"(])")

Size = Literal["tiny", "full"]


@dataclass(frozen=True)
class RecipeEntry:
    """One packaged recipe.

    Args:
        name: 'family/recipe', as `omni-portable train` takes it.
        family / algorithm / engine / device: names of plugins; `engine` is the rollout engine.
        summary: one sentence.
        size: 'tiny', or 'full' for published sizes.
        trains: 'LoRA RANK' or 'all weights'.
        rewards: kinds of the scorers that count, sorted.
        status: :data:`TESTED` where it, or its tiny twin, is run by the tests; :data:`PLANNED` otherwise. A full-size
            recipe is not run on this kind of machine: its configuration and plan are checked.
        source: whose published settings it has.
        twin: the tiny recipe that stands for it in the tests; '' for tiny ones and where there is none.
    """

    name: str
    family: str
    algorithm: str
    summary: str
    size: Size
    trains: str
    rewards: tuple[str, ...]
    engine: str
    device: str
    status: str
    source: str
    twin: str


def catalogue(
    *, family: str | None = None, algorithm: str | None = None, size: Size | None = None
) -> list[RecipeEntry]:
    """Entries of the packaged recipes by name, those that fit what is given."""
    names = list_recipes()
    wanted = [name for name in names if size in (None, size_of(name)) and family in (None, name.partition("/")[0])]
    entries = [recipe_entry(name, names) for name in wanted]
    return [entry for entry in entries if algorithm in (None, entry.algorithm)]


def size_of(name: str) -> Size:
    return "tiny" if name.endswith(TINY) else "full"


def recipe_entry(name: str, names: Sequence[str]) -> RecipeEntry:
    """The entry of the packaged recipe `name`; `names` are all packaged ones."""
    path = find_recipe(name)
    keys = merged_keys(path)
    twin = name + TINY if size_of(name) == "full" and name + TINY in names else ""
    model, defaults = keys["model"], RunConfig()
    rank = model.get("lora", {}).get("rank", 0)
    scorers = keys.get("reward", {}).get("scorers", {}).values()
    return RecipeEntry(
        name=name,
        family=model["family"],
        algorithm=keys["algorithm"]["name"],
        summary=summary(path),
        size=size_of(name),
        trains=f"LoRA {rank}" if rank else "all weights",
        rewards=tuple(sorted({str(section["kind"]) for section in scorers if section.get("weight", 1.0)})),
        engine=keys.get("rollout", {}).get("engine", defaults.rollout.engine),
        device=keys.get("device", {}).get("name", defaults.device.name),
        status=TESTED if twin or size_of(name) == "tiny" else PLANNED,
        source=_source(name, names),
        twin=twin,
    )


def merged_keys(path: Path) -> dict[str, Any]:
    """The recipe's keys over those it extends, as :func:`compose_recipe` merges them but some hundred times as fast.
    Interpolations stay texts; what the schema's defaults give is not there."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    merged: dict[str, Any] = {}
    own = {key: value for key, value in content.items() if key != "defaults"}
    for entry in content.get("defaults", []) + ([] if "_self_" in content.get("defaults", []) else ["_self_"]):
        for other in extended(path, entry):
            merged = _over(merged, merged_keys(other))
        merged = _over(merged, own) if entry == "_self_" else merged
    return merged


def summary(path: Path) -> str:
    """The first sentence of the comment at a recipe's head, in one line; '' without a comment."""
    text = " ".join(line for line in _head(path) if not line.startswith("Source:"))
    first = _SENTENCE.split(text, maxsplit=1)[0]
    return first if first.endswith(".") or not first else f"{first}."


def _source(name: str, names: Sequence[str]) -> str:
    """Its own 'Source:' line, or that of the recipe it stands for."""
    of = name.removesuffix(TINY)
    for each in (name, of if of in names else name):
        for line in _head(find_recipe(each)):
            if line.startswith("Source:"):
                return line.removeprefix("Source:").strip()
    return OWN


def _head(path: Path) -> list[str]:
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("#").strip())
    return lines


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
