"""Whether a process still runs: by its number and the time it started, since numbers are used again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessMark:
    """A process as it was when the mark was taken; `started` is '' where it had ended already."""

    process: int
    started: str

    @property
    def alive(self) -> bool:
        return bool(self.started) and _started(self.process) == self.started


def mark_of(process: int) -> ProcessMark:
    """The process of that number."""
    return ProcessMark(process, _started(process))


def _started(process: int) -> str:
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat); '' for ended ones and zombies."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
