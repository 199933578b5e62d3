"""What a run achieved, computed from what it wrote: before and after on the same held-out samples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from omni_portable.trainer.validation import mean_and_stderr


def read_scores(folder: Path) -> list[float]:
    """Scores in request order from a validation folder's samples.jsonl."""
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return [float(json.loads(line)["score"]) for line in lines]


def summarise(run_dir: Path) -> dict[str, Any]:
    """The content of summary.json.

    `rise_stderr` treats the two validations as independent (the larger, safer figure); `paired_rise_stderr` uses that
    they share prompts and seeds. Without two validations only the step reached is reported.
    """
    folders = sorted(p for p in (run_dir / "validation").iterdir() if (p / "samples.jsonl").is_file())
    if len(folders) < 2:
        return {"validations": [f.name for f in folders]}
    before, after = read_scores(folders[0]), read_scores(folders[-1])
    mean_before, error_before = mean_and_stderr(before)
    mean_after, error_after = mean_and_stderr(after)
    paired = mean_and_stderr([b - a for a, b in zip(before, after, strict=True)])[1]
    return {
        "validations": [f.name for f in folders],
        "samples": len(after),
        "before": mean_before,
        "before_stderr": error_before,
        "after": mean_after,
        "after_stderr": error_after,
        "rise": mean_after - mean_before,
        "rise_stderr": math.hypot(error_before, error_after),
        "paired_rise_stderr": paired,
    }
