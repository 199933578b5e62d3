"""Curves over training and where the time went."""

from __future__ import annotations

from omni_portable.trainer.report.charts import Line, line_chart, stacked_bars
from omni_portable.trainer.report.markup import Raw, number, section, table
from omni_portable.trainer.report.read import RunData
from omni_portable.trainer.report.timeline import roles_table, timeline_chart
from omni_portable.trainer.timing import WAIT

STAGES = ("rollout", "reward", "update", "sync", "validate", "checkpoint")
NOTE = (
    "<p>Shares are of the seconds of all rows. Stages that go on side by side (rounds that are drawn ahead, samples "
    "that are scored as they come) count each for itself, so that the rows may sum to more than the run took.</p>"
)


def curves_section(data: RunData) -> Raw:
    """Reward, validation, KL, ratio, gradient norm, and each scorer's components."""
    errors = dict(data.series("validation/reward_stderr"))
    charts = [
        line_chart(
            "Reward of training samples", [Line("reward", data.series("reward/mean"))], "mean over each rollout"
        ),
        line_chart(
            "Held-out score",
            [Line("validation", data.series("validation/reward_mean"), errors, markers=True)],
            "same prompts and noise each time; bars are standard errors",
        ),
        line_chart("KL of the update", _lines(data, "actor/ppo_kl", "actor/kl_loss"), "policy before against after"),
        line_chart("Probability ratio", _lines(data, "actor/ratio_mean"), "current to old policy", level=1.0),
        line_chart("Share of clipped ratios", _lines(data, "actor/pg_clipfrac")),
        line_chart("Gradient norm", _lines(data, "actor/grad_norm"), "before clipping"),
        line_chart("Learning rate", _lines(data, "actor/lr")),
        line_chart("Spread of rewards", _lines(data, "reward/std"), "standard deviation within each rollout"),
        line_chart(
            "Staleness",
            _moving(data, "replay/staleness/mean", "replay/staleness/max"),
            "policy versions from drawing a group to training on it",
        ),
        line_chart(
            "Interrupted requests",
            _moving(data, "rollout/interrupted/continued", "rollout/interrupted/restarted"),
            "by new weights, since the row before",
        ),
        line_chart(
            "Policy lag", _moving(data, "policy_lag/logprob_abs_diff/mean"), "of log-probs, where samples are older"
        ),
        *_component_charts(data),
    ]
    drawn = "".join(charts)
    return section("Curves", "curves", f'<div class="charts">{drawn}</div>' if drawn else "<p>No step has run yet.</p>")


def _lines(data: RunData, *names: str) -> list[Line]:
    return [Line(name, data.series(name)) for name in names]


def _moving(data: RunData, *names: str) -> list[Line]:
    """Those that are not 0 all along, as they are where rollout does not run ahead."""
    return [line for line in _lines(data, *names) if any(value for _, value in line.points)]


def _component_charts(data: RunData) -> list[Raw]:
    """One chart per scorer: 'reward/<scorer>/<component>'."""
    scorers: dict[str, list[Line]] = {}
    for name in data.names("reward/"):
        parts = name.split("/")
        if len(parts) >= 3:
            scorers.setdefault(parts[1], []).append(Line("/".join(parts[2:]), data.series(name)))
    return [line_chart(f"Scorer {name}", lines, "mean over each rollout") for name, lines in scorers.items()]


def timing_section(data: RunData) -> Raw:
    """Seconds by stage, per step and in total."""
    names = [name.removeprefix("timing_s/") for name in data.names("timing_s/")]
    names = [name for name in names if name != WAIT]  # rollout and reward go on meanwhile and are counted themselves
    stages = [name for name in STAGES if name in names] + [n for n in names if n not in STAGES and n != "step"]
    steps = [step for step, row in sorted(data.rows.items()) if any(name.startswith("timing_s/") for name in row)]
    stacks = {stage: [data.rows[step].get(f"timing_s/{stage}") or 0.0 for step in steps] for stage in stages}
    if not any(sum(values) for values in stacks.values()):
        return section("Time", "time", "<p>No timings have been written.</p>")
    total = sum(sum(values) for values in stacks.values())
    rows = [
        (
            stage,
            f"{sum(values):.1f}",
            f"{sum(values) / max(1, sum(v > 0 for v in values)):.2f}",
            f"{sum(values) / total:.0%}",
        )
        for stage, values in stacks.items()
    ]
    charts = timeline_chart(data.timeline) + stacked_bars("Seconds by stage", steps, stacks)
    head = ("stage", "seconds in all", "seconds each time", "share")
    rates = [(name, *_first_and_last(data, name)) for name in data.names("perf/")]
    extra = table(("figure", "first", "last"), rates, "Throughput") if rates else ""
    return section(
        "Time", "time", f'<div class="charts">{charts}</div>', table(head, rows), Raw(NOTE), roles_table(data), extra
    )


def _first_and_last(data: RunData, name: str) -> tuple[str, str]:
    values = [value for _, value in data.series(name)]
    return number(values[0]), number(values[-1])
