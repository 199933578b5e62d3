"""docs/models.md: which algorithm trains which model, by the check that `train` makes and by the recipes there are."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ci.docs_tables import NOTE, capability, row
from omni_portable.config.catalogue import TESTED, RecipeEntry
from omni_portable.config.convert import Source, build
from omni_portable.config.schema import RunConfig
from omni_portable.config.validate import validate
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

POSSIBLE, IMPOSSIBLE = "possible, not tested", "impossible"
SCORERS: Mapping[str, str] = {"image": "jpeg_compressibility", "video": "video_motion", "text": "exact_match"}
"""First artifact of a family -> a scorer of it."""


def models_page(
    families: Sequence[PluginSpec], algorithms: Sequence[PluginSpec], entries: Sequence[RecipeEntry]
) -> str:
    """Table of families x algorithms, why some pairs cannot be, and what each family is."""
    lines = [
        "# Models\n",
        NOTE,
        "Which algorithm trains which model family:\n",
        f"- **tested**: {TESTED}. A packaged tiny recipe of this pair is trained by the tests, on a model of its class",
        "  and layout with few weights. Full-size recipes of the pair are composed and planned, not run.",
        f"- {POSSIBLE}: the two fit together by the check that `omni-portable train` makes before anything loads, with",
        "  the algorithm's default options; no packaged recipe has them together.",
        f"- {IMPOSSIBLE}: that check refuses them; a note says why.\n",
        "No pair has been run at full size on an accelerator here: [recipes](recipes.md) have published settings, and",
        "[conformance](conformance.md) says what was measured where.\n",
        row(["algorithm", *(f"[`{family.name}`](#{family.name})" for family in families)]),
        "|---" * (len(families) + 1) + "|",
    ]
    notes: dict[str, int] = {}
    for algorithm in algorithms:
        cells = [_cell(status(family, algorithm, entries), notes) for family in families]
        lines.append(row([f"[`{algorithm.name}`](algorithms/{algorithm.name}.md)", *cells]))
    lines += ["", *(f"{number}. {text}" for text, number in notes.items())]
    for family in families:
        lines += ["", *_family(family, [entry for entry in entries if entry.family == family.name])]
    return "\n".join(lines).rstrip() + "\n"


def status(family: PluginSpec, algorithm: PluginSpec, entries: Sequence[RecipeEntry]) -> str:
    """:data:`TESTED`, :data:`POSSIBLE`, or 'impossible because ...'."""
    if any((entry.family, entry.algorithm, entry.status) == (family.name, algorithm.name, TESTED) for entry in entries):
        return TESTED
    problem = refusal(family.name, algorithm.name, next(iter(family.capabilities["artifacts"].values())))
    return f"{IMPOSSIBLE} because {problem}" if problem else POSSIBLE


@functools.cache
def refusal(family: str, algorithm: str, modality: str) -> str:
    """Why `omni-portable train` refuses a recipe of the pair; '' where it does not."""
    teachers = {"teacher": {"path": f"tiny:{family}"}}
    for given in ({}, teachers):
        data: dict[str, Any] = {
            "model": {"family": family, "path": f"tiny:{family}", "teachers": given},
            "algorithm": {"name": algorithm},
            "data": {"train": "prompts.jsonl"},
            "reward": {"scorers": {"main": {"kind": SCORERS[modality]}}},
        }
        try:
            validate(build(RunConfig, data, source=Source()))
        except ConfigError as error:
            problem = error.problem
            if "teacher" not in problem:
                return problem
        else:
            return ""
    return problem


def models_of(algorithm: PluginSpec, families: Sequence[PluginSpec], entries: Sequence[RecipeEntry]) -> list[str]:
    """'STATUS: families', for each status that there is."""
    by_status: dict[str, list[str]] = {}
    for family in families:
        by_status.setdefault(_general(status(family, algorithm, entries)), []).append(f"`{family.name}`")
    return [f"{text.rstrip('.')}: {', '.join(names)}" for text, names in sorted(by_status.items(), reverse=True)]


def _cell(text: str, notes: dict[str, int]) -> str:
    if text == TESTED:
        return "**tested**"
    if text == POSSIBLE:
        return "possible"
    because = _general(text).removeprefix(f"{IMPOSSIBLE} because ")
    return f"{IMPOSSIBLE} ({notes.setdefault(because, len(notes) + 1)})"


def _general(text: str) -> str:
    """One note for all pairs of the same kinds: what the two are, not what they are called."""
    words = [word.partition("=") for word in text.split()]
    general = " ".join(
        key if value and key in ("algorithm.name", "model.family") else key + mark + value for key, mark, value in words
    )
    return general.replace("algorithm.name", "the algorithm").replace("model.family", "the model") + "."


def _family(family: PluginSpec, entries: Sequence[RecipeEntry]) -> list[str]:
    lines = [f"## {family.name}\n", f"{family.summary}.\n"]
    for name, title in (("artifacts", "makes"), ("inputs", "takes beside the prompt"), ("guidance", "guidance")):
        lines.append(f"- {title}: {capability(family.capabilities[name])}")
    lines.append(f"- tiny models: {', '.join(f'`{name}`' for name in tiny_names(family))}")
    lines.append(f"- recipes: {', '.join(f'`{entry.name}`' for entry in entries) or 'none'}")
    return lines


def tiny_names(family: PluginSpec) -> list[str]:
    """'tiny:FAMILY[/VARIANT]' of the models that are built on first use."""
    tiny = family.capabilities.get("tiny", {})
    variants = [""] if isinstance(tiny, str) else list(tiny)
    return [f"tiny:{family.name}/{variant}" if variant else f"tiny:{family.name}" for variant in variants]
