"""The glossary of the user guide, and the names of metrics that the code writes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "user-guide.md"
CODE = (
    "omni_portable/algorithms",
    "omni_portable/trainer",
    "omni_portable/rollout",
    "backends/omni_backends/training",
    "backends/omni_backends/rollout",
    "backends/omni_backends/launch",
)
"""Folders whose code logs metrics."""
ROOTS = (
    "actor|advantage|critical_path_s|perf|policy|policy_lag|replay|response|reward|rewards|role_s|rollout_corr"
    "|teacher|timing_s|training|validation"
)
"""What stands before a metric's first slash."""
NAME = re.compile(rf"(?:{ROOTS})(?:/[a-z0-9_]+|/<[a-z]+>|/[a-z0-9_]*<[a-z]+>)+")
NO_METRICS = {"actor/ratio"}
"""Rows of which only mean, standard deviation and largest deviation are logged."""
_ENTRY = re.compile(r"^\| `([a-z_]+/[a-z0-9_/<>]+)` \|", re.MULTILINE)
_SECTION = re.compile(r"^### (.+)$", re.MULTILINE)


def described(section: str = "") -> list[str]:
    """Names in the guide's tables of metrics, or in one of its sections ('Of every run')."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Metrics\n")[2].partition("\n## ")[0]
    if section:
        parts = _SECTION.split(text)
        text = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    return _ENTRY.findall(text)


def undescribed(names: Iterable[str]) -> list[str]:
    """Those of the names, sorted, that the guide does not have."""
    patterns = [pattern(name) for name in described()]
    return [name for name in sorted(set(names) - {"step"}) if not any(p.fullmatch(name) for p in patterns)]


def pattern(name: str) -> re.Pattern[str]:
    """'reward/<scorer>/score' as a regular expression."""
    return re.compile(re.sub(r"<\w+>", "[^/]+", name))


def names_in(run_dir: Path) -> set[str]:
    """Every name in a run's metrics.jsonl."""
    rows = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {name for row in rows for name in json.loads(row)}


def names_in_code() -> set[str]:
    """Names of metrics in string literals; what an f-string puts in is written '<part>'."""
    files = [file for folder in CODE for file in sorted((ROOT / folder).rglob("*.py"))]
    found = {text for file in files for text in _texts(ast.parse(file.read_text(encoding="utf-8")))}
    return {text for text in found if NAME.fullmatch(text)} - NO_METRICS


def _texts(tree: ast.AST) -> Iterator[str]:
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "<part>"  # a name or a value
                for part in node.values
            )
