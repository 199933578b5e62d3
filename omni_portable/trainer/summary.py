"""What a run achieved, computed from what it wrote: before and after on the same held-out samples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import RunDirectoryError
from omni_portable.trainer.checkpoint import list_checkpoints
from omni_portable.trainer.validation import mean_and_stderr

SAMPLES = "samples.jsonl"


def read_scores(folder: Path) -> dict[tuple[str, int], float]:
    """(prompt id, sample index) -> score from a validation folder, in request order, without samples that have none."""
    path = folder / SAMPLES
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        scored = [row for row in rows if row["score"] is not None]
        return {(row["prompt_id"], row["sample_index"]): float(row["score"]) for row in scored}
    except (OSError, ValueError, RecursionError, TypeError, LookupError) as error:
        raise RunDirectoryError(
            f"{path} is damaged, so the result cannot be computed: {error}",
            remedy="remove its folder; validations that are left are compared",
        ) from error


def summarise(run_dir: Path) -> dict[str, Any]:
    """The content of summary.json.

    `rise_stderr` treats the two validations as independent (the larger, safer figure); `paired_rise_stderr` uses that
    they share prompts and seeds, over the samples that have a score in both (0 without any). Without two validations
    there are no figures.
    """
    folders = [path for path in list_checkpoints(run_dir / "validation") if (path / SAMPLES).is_file()]
    if len(folders) < 2:
        return {"validations": [f.name for f in folders]}
    before, after = read_scores(folders[0]), read_scores(folders[-1])
    mean_before, error_before = mean_and_stderr(list(before.values()))
    mean_after, error_after = mean_and_stderr(list(after.values()))
    changes = [after[key] - before[key] for key in before if key in after]
    paired = mean_and_stderr(changes)[1] if changes else 0.0
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
