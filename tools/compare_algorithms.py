"""Compare finished runs that share everything but the algorithm: a table and a plot for docs/algorithms.

for name in $(python tools/compare_algorithms.py --list); do
  omni-portable train sd3/$name trainer.run_dir=runs/compare/$name trainer.validate_interval=25
done
python tools/compare_algorithms.py runs/compare/*
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from omni_portable.trainer.report.read import RunData, read_run

RECIPES = (
    "flow_grpo_ocr_tiny",
    "flow_grpo_sde_ocr_tiny",
    "dance_grpo_ocr_tiny",
    "mix_grpo_ocr_tiny",
    "grpo_guard_ocr_tiny",
    "flow_dppo_ocr_tiny",
    "diffusion_nft_ocr_tiny",
    "diffusion_dpo_ocr_tiny",
)
SAME = ("model", "data", "rollout", "actor", "reward")
"""Sections that the compared runs must have in common."""
WINDOW = 5
"""Steps that a point of the training curve averages."""


@dataclass(frozen=True)
class Outcome:
    """What one run reached; scores are means over the held-out prompts, `error` is the standard error of the rise."""

    label: str
    recipe: str
    before: float
    after: float
    rise: float
    error: float
    held_out: int
    steps: int
    samples: int
    update_seconds: float
    step_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run directories")
    parser.add_argument("--out", type=Path, default=Path("docs/algorithms"), help="folder of the page")
    parser.add_argument("--list", action="store_true", help="print the recipes that are compared")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(RECIPES))
        return
    runs = sorted((read_run(folder) for folder in arguments.runs), key=lambda run: -float(run.summary["rise"]))
    refuse_unlike(runs)
    outcomes = [outcome(run) for run in runs]
    draw(runs, outcomes, arguments.out / "comparison.svg")
    figures = json.dumps([asdict(one) for one in outcomes], indent=1)
    (arguments.out / "comparison.json").write_text(figures + "\n", encoding="utf-8")
    (arguments.out / "_comparison.md").write_text(page(outcomes), encoding="utf-8")


def refuse_unlike(runs: list[RunData]) -> None:
    """Exit where two runs differ in more than the algorithm."""
    for section in SAME:
        for run in runs[1:]:
            if run.config[section] != runs[0].config[section]:
                raise SystemExit(f"{run.run_dir} and {runs[0].run_dir} differ in '{section}': not a comparison")


def outcome(run: RunData) -> Outcome:
    summary, rows = run.summary, [row for step, row in run.rows.items() if step > 0]
    return Outcome(
        label=label(run),
        recipe=Path(run.config["recipe"]).stem,
        before=summary["before"],
        after=summary["after"],
        rise=summary["rise"],
        error=summary["paired_rise_stderr"],
        held_out=summary["samples"],
        steps=len(rows),
        samples=int(sum(row["reward/samples"] or 0 for row in rows)),
        update_seconds=mean(rows, "timing_s/update"),
        step_seconds=mean(rows, "timing_s/step"),
    )


def label(run: RunData) -> str:
    """The algorithm, with its step kernel where it has one."""
    algorithm = run.config["algorithm"]
    kind = {"dance_grpo": "dance_sde"}.get(algorithm["name"], "")
    kind = algorithm.get("step_kind", kind)
    return f"{algorithm['name']} ({kind})" if kind else str(algorithm["name"])


def mean(rows: list[dict[str, float | None]], name: str) -> float:
    """Middle value of a metric over the steps (the first step also warms up)."""
    values = sorted(value for row in rows if (value := row.get(name)) is not None)
    return values[len(values) // 2]


def draw(runs: list[RunData], outcomes: list[Outcome], path: Path) -> None:
    """Rises with two standard errors beside the smoothed training rewards."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    colours = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
    for place, (run, one) in enumerate(zip(runs, outcomes, strict=True)):
        left.barh(place, one.rise, xerr=2 * one.error, color=colours[place], capsize=3)
        points = [(step, value) for step, value in run.series("reward/mean") if value is not None]
        smooth = [
            (step, sum(value for _, value in points[max(0, i - WINDOW + 1) : i + 1]) / min(i + 1, WINDOW))
            for i, (step, _) in enumerate(points)
        ]
        right.plot(*zip(*smooth, strict=True), color=colours[place], label=one.label)
    left.set_yticks(range(len(outcomes)), [one.label for one in outcomes])
    left.invert_yaxis()
    left.set_xlabel("rise of the held-out OCR score (bar: two standard errors)")
    right.set_xlabel("step")
    right.set_ylabel(f"training reward (mean of {WINDOW} steps)")
    right.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def page(outcomes: list[Outcome]) -> str:
    """The Markdown section that the page on algorithms ends with."""
    first = outcomes[0]
    rows = "\n".join(
        f"| {one.label} | `sd3/{one.recipe}` | {one.after:.3f} | +{one.rise:.3f} ± {one.error:.3f} |"
        f" {one.rise / one.error:.1f} | {one.update_seconds:.1f} |"
        for one in outcomes
    )
    return f"""## One budget, one model, one reward

The packaged spelling model, {first.steps} steps of {first.samples // first.steps} samples, one optimizer step each, \
the same learning rate; only the section `algorithm`
differs. The score is the mean OCR score of {first.held_out} held-out samples, {first.before:.3f} before training; \
± is the standard error of the paired rise.

| algorithm | recipe | after | rise | in standard errors | update, s |
|---|---|---|---|---|---|
{rows}

![Rise of the held-out score and training reward of each algorithm](comparison.svg)

What to take from it, and what not: every algorithm learns here, with the settings of its recipe and one seed. The
order holds for this model, this reward and this budget; learning rates were not tuned per algorithm. Seconds are of
one thread of a shared CPU. `tools/compare_algorithms.py` makes this section from run directories, and refuses runs
that differ in more than the algorithm.
"""


if __name__ == "__main__":
    main()
