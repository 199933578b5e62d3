"""Reads a run directory as it is: finished, unfinished, or killed in the middle of a row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from omni_portable.contracts.errors import RunDirectoryError
from omni_portable.trainer.checkpoint import list_checkpoints
from omni_portable.trainer.timeline import read_rows
from omni_portable.trainer.timing import Span

Point = tuple[int, float | None]


@dataclass(frozen=True)
class Validation:
    """One validation: its step, its folder, and a mapping per sample (the rows of samples.jsonl)."""

    step: int
    folder: Path
    samples: list[dict[str, Any]]


@dataclass
class RunData:
    """All that a report shows.

    Args:
        rows: step -> metrics; a metric that is undefined in a step is None.
        config: the resolved configuration as plain data, `config_text` the same as written.
        environment / summary: content of environment.json and summary.json, empty while they do not exist.
        plan: the plan in words.
        timeline: (step, stretch of a stage) in the order of writing; empty where none was written.
        notes: what is missing or was left out, for the reader.
    """

    run_dir: Path
    rows: dict[int, dict[str, float | None]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    plan: str = ""
    validations: list[Validation] = field(default_factory=list)
    timeline: list[tuple[int, Span]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def series(self, name: str) -> list[Point]:
        """(step, value) of every row that has the metric."""
        return [(step, row[name]) for step, row in sorted(self.rows.items()) if name in row]

    def names(self, prefix: str) -> list[str]:
        """Metrics under a prefix, in the order of their first appearance."""
        return list(dict.fromkeys(name for row in self.rows.values() for name in row if name.startswith(prefix)))

    def setting(self, key: str, default: Any = None) -> Any:
        """A value of the configuration by dotted key."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    @property
    def last_step(self) -> int:
        return max(self.rows, default=0)

    @property
    def finished(self) -> bool:
        total = self.setting("trainer.total_steps")
        return bool(self.summary) and (not isinstance(total, int) or self.last_step >= total)


def read_run(run_dir: Path) -> RunData:
    """Read what there is; whatever is missing becomes a note.

    Raises:
        RunDirectoryError: the folder is no run directory, or a file of it is damaged (other than a torn last line).
    """
    if not run_dir.is_dir():
        raise RunDirectoryError(f"there is no run directory {run_dir}", choices=_runs_below(run_dir.parent))
    if not any((run_dir / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
        raise RunDirectoryError(
            f"{run_dir} is no run directory: it holds neither config.yaml nor metrics.jsonl",
            remedy="name the folder that training printed (trainer.run_dir)",
            choices=_runs_below(run_dir),
        )
    data = RunData(run_dir)
    data.config_text = _text(data, "config.yaml")
    data.config = _yaml(run_dir / "config.yaml", data.config_text)
    data.plan = _text(data, "plan.txt")
    data.environment = _json(data, "environment.json")
    data.summary = _json(data, "summary.json")
    for name, value in data.summary.items():
        if name != "validations" and finite(value) is None:
            raise RunDirectoryError(f"{run_dir / 'summary.json'} is damaged: '{name}' is no number")
    for row in _json_lines(data, run_dir / "metrics.jsonl"):
        _add_row(data, row)
    lost = [step for step in range(1, data.last_step) if step not in data.rows]
    if lost:
        data.notes.append(f"metrics.jsonl lacks the rows of {len(lost)} steps, the first of step {lost[0]}")
    data.validations = list(_validations(data))
    data.timeline, damaged = read_rows(run_dir)
    if damaged:
        lines = "1 line" if damaged == 1 else f"{damaged} lines"
        data.notes.append(f"{lines} of timeline.jsonl are no stretches of a stage and were left out")
    return data


def _runs_below(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return [str(path.parent) for path in sorted(folder.glob("*/config.yaml"))][:10]


def _text(data: RunData, name: str) -> str:
    path = data.run_dir / name
    if not path.is_file():
        data.notes.append(f"{name} does not exist (yet)")
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        value = yaml.safe_load(text) if text else {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is damaged: {error}") from error
    return value if isinstance(value, dict) else {}


def _json(data: RunData, name: str) -> dict[str, Any]:
    text = _text(data, name)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{data.run_dir / name} is damaged: {error}") from error
    return value if isinstance(value, dict) else {}


def _json_lines(data: RunData, path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file; only its last line may be incomplete, and that is noted."""
    if not path.is_file():
        data.notes.append(f"{path.relative_to(data.run_dir)} does not exist (yet)")
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                data.notes.append(f"the last line of {path.relative_to(data.run_dir)} is incomplete and was left out")
                return
            raise RunDirectoryError(f"line {number} of {path} is damaged: {error}") from error
        if not isinstance(row, dict):
            raise RunDirectoryError(f"line {number} of {path} is no object")
        yield row


def _add_row(data: RunData, row: Mapping[str, Any]) -> None:
    step = row.get("step")
    if type(step) is not int:
        raise RunDirectoryError(f"a row of {data.run_dir / 'metrics.jsonl'} has no step: {str(row)[:80]}")
    values = {name: finite(value) for name, value in row.items() if name != "step"}
    data.rows.setdefault(step, {}).update(values)


def finite(value: Any) -> float | None:
    """The value where it is a finite number."""
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else None


def _validations(data: RunData) -> Iterator[Validation]:
    for folder in list_checkpoints(data.run_dir / "validation"):  # its folders are named alike
        if (folder / "samples.jsonl").is_file():
            step = int(folder.name.removeprefix("step_"))
            yield Validation(step, folder, list(_json_lines(data, folder / "samples.jsonl")))
