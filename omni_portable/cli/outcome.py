"""Prints what a run achieved."""

from __future__ import annotations

from pathlib import Path


def print_outcome(run_dir: Path, report: Path) -> None:
    """The result in words, then where everything is."""
    from omni_portable.trainer.report.outcome import read_outcome
    from omni_portable.trainer.report.read import read_run

    outcome = read_outcome(read_run(run_dir))
    print()
    print(outcome.sentence())
    print(f"run directory: {run_dir}")
    print(f"report:        {report}")
