"""Did actor and rollout agree? Measured figures beside the limits that the recipe sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omni_portable.trainer.report.charts import Line, line_chart
from omni_portable.trainer.report.markup import Raw, details, esc, number, section, table
from omni_portable.trainer.report.read import RunData

GAP = "rollout_corr/logprob_abs_diff/"

KNOWN: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    GAP + "mean": ("mean gap of log-probs, actor against rollout", max),
    GAP + "p99": ("99th percentile of the gap", max),
    GAP + "max": ("largest gap", max),
    "rollout_corr/kl": ("KL estimate, rollout to actor", lambda values: max(values, key=abs)),
    "rollout_corr/ratio_mean": ("mean probability ratio", lambda values: max(values, key=lambda v: abs(v - 1))),
    "rollout_corr/ratio_exact_one": ("share of transitions whose log-probs agree bit for bit", min),
    "training/rollout_actor_probs_pearson_corr": ("correlation of probabilities", min),
    "rollout_corr/batch_shape_gap/max": ("largest gap when scored in batches of another size", max),
}
"""Metric -> what it says, and which of several values is the worst."""

WARNINGS = {"training/rollout_actor_probs_pearson_corr": 0.995}
"""Correlation below which published guidance calls the rollout engine unhealthy."""


def consistency_section(data: RunData) -> Raw:
    """A row per metric: first, worst and last value, its limit, and whether it holds."""
    rows = [_row(data, name) for name in KNOWN if any(value is not None for _, value in data.series(name))]
    if not rows:
        return section("Consistency", "consistency", "<p>Not measured in this run (consistency.measure).</p>")
    head = ("metric", "what it says", "first", "worst", "last", "limit", "verdict")
    intro = (
        "<p>Before each update the actor scores the rollout's own transitions. With equal arithmetic on both sides the "
        "log-probs agree exactly; what is left is the difference of the two engines.</p>"
    )
    others = [name for name in data.names("rollout_corr/") if name not in KNOWN]
    more = table(("metric", "first", "last"), [(n, *_ends(data, n)) for n in others]) if others else ""
    chart = line_chart("Largest log-prob gap", [Line("gap", data.series(GAP + "max"))])
    return section(
        "Consistency of actor and rollout",
        "consistency",
        intro,
        _clip_warning(data),
        table(head, rows),
        f'<div class="charts">{chart}</div>',
        details("By timestep and batch size", more) if more else "",
    )


def _row(data: RunData, name: str) -> tuple[str | Raw, ...]:
    meaning, worst_of = KNOWN[name]
    values = [value for _, value in data.series(name) if value is not None]
    worst = worst_of(values)
    limit, holds = _limit(data, name, worst)
    badge = '<span class="badge good">within</span>' if holds else '<span class="badge bad">exceeded</span>'
    verdict = Raw("measured" if holds is None else badge)
    return name, meaning, number(values[0], 6), number(worst, 6), number(values[-1], 6), limit, verdict


def _limit(data: RunData, name: str, worst: float) -> tuple[str, bool | None]:
    """What is asked of a metric, and whether it holds (None where nothing is asked)."""
    if name == GAP + "max":
        limit = data.setting("consistency.max_logprob_gap")
        if isinstance(limit, (int, float)):
            return f"at most {number(float(limit))} (consistency.max_logprob_gap)", worst <= limit
    if name in WARNINGS:
        return f"at least {WARNINGS[name]} (guidance)", worst >= WARNINGS[name]
    return "none set", None


def _clip_warning(data: RunData) -> str:
    """A clip range below the gap of the engines clips noise, not policy change."""
    clip = data.setting("algorithm.clip_ratio")
    gaps = [value for _, value in data.series(GAP + "p99") if value is not None]
    if not isinstance(clip, (int, float)) or not gaps or max(gaps) <= clip:
        return ""
    return (
        f'<p class="warning">The clip range algorithm.clip_ratio={esc(number(float(clip)))} is below the measured gap '
        f"of actor and rollout (99th percentile up to {number(max(gaps))}): ratios are clipped by the difference of "
        "the engines, not by the change of the policy.</p>"
    )


def _ends(data: RunData, name: str) -> tuple[str, str]:
    values = [value for _, value in data.series(name)]
    return number(values[0], 6), number(values[-1], 6)
