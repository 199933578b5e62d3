"""`omni-portable quickstart`: the whole loop on a tiny packaged model, on whatever device is there."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from omni_portable.cli.train import add_overrides, resume_hint, run_and_print

RECIPE = "sd3/flow_grpo_ocr_tiny"
LONG = ("trainer.total_steps=55", "trainer.validate_interval=11", "data.train_batch_size=32")
"""Overrides of `--long`: larger rollouts, since with those of the recipe the score stands still after 50 steps."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "quickstart",
        help="train a tiny packaged model and report the rise of its score",
        description=f"Train the packaged recipe {RECIPE} (a tiny text-to-image model that learns to spell), then print "
        "the held-out score before and after, its standard error, and the path of the report.",
    )
    add_overrides(parser)
    parser.add_argument("--long", action="store_true", help=f"train longer ({', '.join(LONG)})")
    parser.add_argument("--run-dir", metavar="DIR", type=Path, help="where to write (runs/quickstart-<time>)")
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    from omni_portable.config.loader import load_config
    from omni_portable.config.quoting import quote_value

    overrides = [*(LONG if arguments.long else ()), *arguments.overrides]
    config = load_config(RECIPE, overrides)
    if arguments.run_dir is not None or not config.trainer.run_dir:
        config.trainer.run_dir = str(arguments.run_dir or default_run_dir())
    folder = f"trainer.run_dir={quote_value(config.trainer.run_dir)}"
    arguments.resume_hint = resume_hint(RECIPE, [*overrides, folder])
    run_and_print(config)
    print(target_sentence(Path(config.trainer.run_dir)))
    return 0


def default_run_dir() -> Path:
    """A new folder for every quickstart, so that a second one never meets the first one's run."""
    return Path("runs") / f"quickstart-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def target_sentence(run_dir: Path) -> str:
    """Whether the score rose by more than chance does."""
    from omni_portable.trainer.report.outcome import CLEAR, read_outcome
    from omni_portable.trainer.report.read import read_run

    outcome = read_outcome(read_run(run_dir))
    target = f"target (a rise of at least {CLEAR:g} standard errors)"
    if outcome.clear:
        return f"{target}: met"
    if outcome.rise is None:
        return f"{target}: not measured, because the run has no two validations"
    return f"{target}: NOT met. Train longer with `omni-portable quickstart --long`, or look at the report's curves."
