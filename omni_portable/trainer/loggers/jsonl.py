"""The logger 'jsonl': one JSON object per step in ``metrics.jsonl``. Loads without torch."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import RunDirectoryError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.trainer.loggers.values import LoggerOptions, checked
from omni_portable.trainer.rundir import write_text

METRICS = "metrics.jsonl"

log = logging.getLogger(__name__)

SPEC = PluginSpec(
    name="jsonl",
    summary="one JSON object per step in metrics.jsonl, durable after every row",
    target="omni_portable.trainer.loggers.jsonl:JsonlLogger",
    options=LoggerOptions,
)


class JsonlLogger:
    """Appends ``{"step": k, <metric>: value, ...}``; each row is on disk before `log` returns.

    A metric that is undefined (see `LoggerOptions.undefined`) is written as null.

    Args:
        resumed_from: last completed step; later rows, and the torn row of a process that was killed while writing, are
            removed first, in one atomic replacement. 0 or None starts an empty file.
    """

    def __init__(self, options: LoggerOptions, run_dir: Path, resumed_from: int | None = None) -> None:
        self._options, self._path = options, run_dir / METRICS
        kept = kept_rows(self._path, resumed_from) if resumed_from and self._path.exists() else []
        write_text(self._path, "".join(f"{row}\n" for row in kept))
        with disk_errors(self._path):
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - held until close

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row.

        Raises:
            NonFiniteError: a metric is NaN or infinite that may not be; nothing is written.
        """
        row = json.dumps({"step": step, **checked(step, metrics, self._options.undefined)}, allow_nan=False)
        with disk_errors(self._path):
            self._append((row + "\n").encode())

    def _append(self, line: bytes) -> None:
        """Write a whole line or nothing, and make it durable.

        The file is unbuffered: what a full disk refuses must not wait in a buffer and fail again on closing."""
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)
            raise

    def log_image(self, step: int, name: str, path: Path) -> None:
        """Nothing to do: images lie in the run directory already, next to the scores they belong to."""
        del step, name, path

    def close(self) -> None:
        """Safe to call twice."""
        self._file.close()


def kept_rows(path: Path, resumed_from: int) -> list[str]:
    """The rows of steps up to `resumed_from`, as written.

    Only the last line may be torn; rows go to disk one after the other, so damage elsewhere is no crash of ours.

    Raises:
        RunDirectoryError: another line is not a row.
    """
    with disk_errors(path):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    kept, steps = [], set()
    for number, line in enumerate(lines, start=1):
        step = row_step(line)
        if step is None and number < len(lines):
            raise RunDirectoryError(
                f"line {number} of {path} is damaged, so the run's history cannot be continued",
                remedy="repair or remove that line, or move the file away to start a new history",
            )
        if step is not None and step <= resumed_from:
            kept.append(line)
            steps.add(step)
    lost = [step for step in range(1, resumed_from + 1) if step not in steps]
    if lost:
        log.warning("%s lacks %d rows up to step %d, the first of step %d", path, len(lost), resumed_from, lost[0])
    return kept


def row_step(line: str) -> int | None:
    """The step of a row, or None when the line is no complete row."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return step if type(step) is int else None
