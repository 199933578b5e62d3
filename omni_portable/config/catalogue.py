"""What the packaged recipes are, without composing them: the fields of `omni-portable recipes list --json`.

A recipe says of itself, in the comment at its head, what it is (its first sentence), whose settings it has (a line
'Source: ...') and in what it is not like that source (lines 'Differs: ...', also those of the recipes that it extends).
The rest is read from its keys. Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from omni_portable.config.recipes import extended, find_recipe, list_recipes
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.spelling import bare

TINY = "_tiny"
"""How the names of recipes end that run anywhere in seconds or minutes; without it, that of the recipe they stand for.
Every one of them is run by the tests."""
TESTED, TWIN, PLANNED = "tested tiny on CPU", "composed and planned; its tiny twin is tested", "composed and planned"
OWN = "Omni-Portable"
SOURCE, DIFFERS = "Source:", "Differs:"
FILLERS = frozenset(("a", "an", "and", "for", "in", "of", "on", "the", "to", "with"))
"""Words that a search leaves out."""
_SENTENCE = re.compile(r"(?<!\bDr)\.\s+(?=[A-Z'\"(])")

Size = Literal["tiny", "full"]


@dataclass(frozen=True)
class RecipeEntry:
    """One packaged recipe.

    Args:
        name: 'family/recipe', as `omni-portable train` takes it.
        family / algorithm / engine / device: names of plugins; `engine` is the rollout engine.
        model: `model.path`.
        summary: one sentence.
        size: 'tiny', or 'full' for published sizes.
        trains: 'LoRA RANK' or 'all weights'.
        rewards: kinds of the scorers that count, sorted.
        differs: in what it is not like its source: 'which reward, instead of which'; one text for each thing.
        status: :data:`TESTED` for tiny ones, which the tests run. A full-size recipe is not run on this kind of
            machine: its configuration and plan are checked, and with :data:`TWIN` a tiny recipe stands for it in the
            tests; otherwise :data:`PLANNED`.
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
    differs: tuple[str, ...]
    status: str
    source: str
    twin: str
    model: str


def catalogue(
    *, family: str | None = None, algorithm: str | None = None, size: Size | None = None, words: Sequence[str] = ()
) -> list[RecipeEntry]:
    """Entries of the packaged recipes by name, those that fit what is given.

    Args:
        words: each of them is somewhere in a recipe's name, summary, source, algorithm, rewards or model; upper case,
            '_' and '-' make no difference. Recipes with more of them in their names come first.
    """
    names = list_recipes()
    wanted = [name for name in names if size in (None, size_of(name)) and family in (None, name.partition("/")[0])]
    entries = [recipe_entry(name, names) for name in wanted]
    entries = [entry for entry in entries if algorithm in (None, entry.algorithm)]
    sought = [word for word in words if word.casefold() not in FILLERS]
    found = [entry for entry in entries if all(holds(entry, word) for word in sought)]
    return sorted(found, key=lambda entry: -sum(bare(word) in bare(entry.name) for word in sought))


def holds(entry: RecipeEntry, word: str) -> bool:
    """Whether the word is anywhere in what an entry says."""
    fields = (entry.name, entry.summary, entry.source, entry.algorithm, entry.model, entry.trains, *entry.rewards)
    return any(bare(word) in bare(field) for field in fields)


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
        differs=_differs(name, path, names),
        status=TESTED if size_of(name) == "tiny" else TWIN if twin else PLANNED,
        source=_source(name, names),
        twin=twin,
        model=str(model["path"]),
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
    text = " ".join(line for line in _head(path) if not line.startswith((SOURCE, DIFFERS)))
    first = _SENTENCE.split(text, maxsplit=1)[0]
    return first if first.endswith(".") or not first else f"{first}."


def _source(name: str, names: Sequence[str]) -> str:
    """Its own 'Source:' line, or that of the recipe it stands for."""
    of = name.removesuffix(TINY)
    for each in (name, of if of in names else name):
        for line in _head(find_recipe(each)):
            if line.startswith(SOURCE):
                return line.removeprefix(SOURCE).strip()
    return OWN


def _differs(name: str, path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Its own 'Differs:' lines before those of what it extends; of a tiny one that everything is small."""
    if _source(name, names) == OWN:
        return ()
    if size_of(name) == "tiny":
        return ("model, sizes, data and rewards are tiny ones",)
    return tuple(dict.fromkeys(_differences(path)))


def _differences(path: Path) -> Iterator[str]:
    """'Differs:' lines of a file, then those of the files in its defaults list."""
    yield from (line.removeprefix(DIFFERS).strip() for line in _head(path) if line.startswith(DIFFERS))
    for entry in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("defaults", []):
        for base in extended(path, entry):
            yield from _differences(base)


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
