"""Reading run directories in tests."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

CLOCKS = ("timing_s/", "perf/", "role_s/", "critical_path_s/")
"""Prefixes of metrics that no two runs share."""
OWN = ("run.lock", "log.txt")
"""Files that every attempt to run may write."""


def logged(run_dir: Path) -> int:
    """Rows of metrics.jsonl so far, a torn one included."""
    path = run_dir / "metrics.jsonl"
    return path.read_text(errors="replace").count('"step"') if path.is_file() else 0


def worker(run_dir: Path, label: str) -> int:
    """Process of a role, the last that was started, as the log has it."""
    return int(re.findall(rf"'{label}' runs in process (\d+)", (run_dir / "log.txt").read_text())[-1])


def metrics(run_dir: Path) -> dict[int, dict[str, float]]:
    """step -> metrics, without what a clock says."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len({row["step"] for row in rows}) == len(rows), "a step was logged twice"
    return {row["step"]: {k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows}


def differences(left: dict[int, dict[str, float]], right: dict[int, dict[str, float]]) -> list[str]:
    """'step metric: a b' wherever two histories are not equal bit for bit."""
    found = []
    for step in sorted(left.keys() | right.keys()):
        a, b = left.get(step, {}), right.get(step, {})
        found += [f"{step} {k}: {a.get(k)!r} {b.get(k)!r}" for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]
    return found


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of every safetensors file below a folder, by file and name."""
    files = sorted(folder.rglob("*.safetensors"))
    assert files, f"no weights in {folder}"
    return {f"{file.relative_to(folder)}:{name}": t for file in files for name, t in load_file(file).items()}


def equal_tensors(left: Path, right: Path) -> bool:
    a, b = tensors(left), tensors(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def checkpoints(run_dir: Path) -> list[str]:
    return sorted(p.name for p in (run_dir / "checkpoints").iterdir())


def snapshot(folder: Path) -> dict[str, str]:
    """Hash of every file, without those that every attempt may write."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in OWN
    }


def validation_scores(run_dir: Path) -> dict[str, list[Any]]:
    """Folder name -> scores in order."""
    return {
        folder.name: [json.loads(line)["score"] for line in (folder / "samples.jsonl").read_text().splitlines()]
        for folder in sorted((run_dir / "validation").iterdir())
    }
