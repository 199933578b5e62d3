"""The timeline of a run: one JSON line per stretch of a stage, as the report draws it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from omni_portable.contracts.disk import disk_errors
from omni_portable.trainer.rundir import write_text
from omni_portable.trainer.timing import Span

FILE = "timeline.jsonl"


def append_timeline(run_dir: Path, step: int, spans: Sequence[Span]) -> None:
    """Add the spans of a step; seconds count from the start of this process' loop."""
    with disk_errors(run_dir / FILE), (run_dir / FILE).open("a", encoding="utf-8") as file:
        file.write("".join(_line(step, span) for span in spans))


def _line(step: int, span: Span) -> str:
    row = {"step": step, "stage": span.stage, "start": round(span.start, 4), "end": round(span.end, 4)}
    return json.dumps(row) + "\n"


def read_timeline(run_dir: Path, last_step: float = math.inf) -> list[tuple[int, Span]]:
    """(step, span) of every whole row up to `last_step`; rows that are damaged are left out."""
    return [found for found in read_rows(run_dir)[0] if found[0] <= last_step]


def read_rows(run_dir: Path) -> tuple[list[tuple[int, Span]], int]:
    """(step, span) of every whole row, and how many others there are; a last one that a kill cut off does not count."""
    path = run_dir / FILE
    if not path.is_file():
        return [], 0
    text = path.read_text(encoding="utf-8", errors="replace")
    found = [_stretch(line) for line in text.splitlines()]
    rows = [row for row in found if row is not None]
    cut_off = bool(found) and found[-1] is None and not text.endswith("\n")
    return rows, len(found) - len(rows) - cut_off


def _stretch(line: str) -> tuple[int, Span] | None:
    """What a line says; None where it is no JSON, lacks a key, or its seconds are none or run backwards."""
    try:
        row = json.loads(line)
        step, span = int(row["step"]), Span(str(row["stage"]), float(row["start"]), float(row["end"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return (step, span) if -math.inf < span.start <= span.end < math.inf else None


def rewind_timeline(run_dir: Path, step: int) -> None:
    """Keep the rows up to `step` only: the file is replaced as a whole, so that a kill loses none of them."""
    if (run_dir / FILE).exists():
        write_text(run_dir / FILE, "".join(_line(number, span) for number, span in read_timeline(run_dir, step)))
