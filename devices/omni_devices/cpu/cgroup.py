"""Limits that control groups (containers, job schedulers) put on this process, versions 1 and 2; no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Budget:
    """One group's memory in bytes: its limit, and what its processes hold (file cache that can be dropped left out)."""

    limit: int
    used: int


def memory_budgets(proc: Path = PROC, cgroup: Path = CGROUP) -> list[Budget]:
    """Every group above this process that limits memory; all of them apply."""
    budgets = []
    for folder in _folders("memory", proc, cgroup):
        for names in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(folder / names[0])
            if limit is not None:
                used = (_number(folder / names[1]) or 0) - _stat(folder / "memory.stat", names[2])
                budgets.append(Budget(limit, max(0, used)))
    return budgets


def cpu_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Whole cores that the tightest quota allows, at least 1; None without a quota."""
    quotas = []
    for folder in _folders("cpu", proc, cgroup):
        words = _words(folder / "cpu.max") or (
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        )
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            quotas.append(max(1, math.ceil(int(words[0]) / int(words[1]))))
    return min(quotas, default=None)


def _folders(controller: str, proc: Path, cgroup: Path) -> Iterator[Path]:
    """The process's group and its parents, as far as they are visible here (a container often sees only the root)."""
    membership = proc / "self" / "cgroup"
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = (cgroup, cgroup / "unified")
        elif controller in controllers.split(","):
            roots = (cgroup / controller, cgroup / controllers)
        else:
            continue
        for root in dict.fromkeys(roots):
            group = root / path.lstrip("/")
            while group != root:
                if group.is_dir():
                    yield group
                group = group.parent
            if root.is_dir():
                yield root


def _words(file: Path) -> tuple[str, ...]:
    return tuple(file.read_text().split()) if file.is_file() else ()


def _number(file: Path) -> int | None:
    words = _words(file)
    return int(words[0]) if words and words[0].isdigit() else None


def _stat(file: Path, key: str) -> int:
    words = _words(file)
    return int(words[words.index(key) + 1]) if key in words else 0
