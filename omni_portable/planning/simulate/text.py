"""A simulated run in words, and as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from omni_portable.planning.placement.advise import NO_LENDING
from omni_portable.planning.placement.model import Prediction
from omni_portable.planning.simulate.run import Outcome
from omni_portable.planning.simulate.workload import Workload


def outcome_as_text(name: str, workload: Workload, outcome: Outcome, planned: Prediction) -> str:
    """The figures, beside those of the planner."""
    placed = workload.placement
    groups = sum(outcome.staleness.values())
    staleness = ", ".join(f"{value}: {count / groups:.0%}" for value, count in outcome.staleness.items())
    difference = outcome.step_s / planned.step_s - 1 if planned.step_s else 0.0
    head = (
        f"{name}\n{placed.mode} {placed.split} on {placed.devices} devices, {outcome.steps} steps of {placed.prompts} "
        f"prompts x {workload.samples} samples, {workload.piece} per call, times {workload.times}"
    )
    rows = [
        ("seconds per prompt", f"{outcome.seconds_per_prompt:.4g} (planner: {planned.seconds_per_prompt:.4g})"),
        ("seconds per step", f"{outcome.step_s:.4g} (planner: {planned.step_s:.4g}, {difference:+.1%})"),
        ("samples per second", f"{outcome.samples_per_s:.4g}"),
        ("simulated time", f"{outcome.total_s:.4g} s, {outcome.syncs} weight syncs, {outcome.events} events"),
        ("devices busy", f"rollout {outcome.rollout_busy:.0%}, trainer {outcome.train_busy:.0%}"),
        ("staleness of groups", staleness or "none were trained on"),
        ("evicted groups", str(outcome.evicted_groups)),
        ("calls waiting", f"{outcome.queue_mean:.1f} on average, {outcome.queue_max} at most"),
        ("groups in the buffer", f"{outcome.buffer_mean:.1f} on average, {outcome.buffer_max} at most"),
    ]
    if outcome.interrupted:
        rows.append(("interrupted calls", f"{outcome.interrupted}, {outcome.lost:.1%} of rollout's work lost"))
    notes = [] if placed.mode == "sync" else [f"note: {NO_LENDING}"]
    return "\n".join([head, *(f"  {label:<22}{value}" for label, value in rows), *notes])


def outcome_as_data(name: str, workload: Workload, outcome: Outcome, planned: Prediction) -> dict[str, Any]:
    """For `--json`."""
    work = dataclasses.asdict(workload)
    for field in ("rollout_ratios", "train_ratios"):
        del work[field]
    figures = dataclasses.asdict(outcome)
    del figures["trace"]
    return {
        "profile": name,
        "workload": work,
        "outcome": figures,
        "notes": [] if workload.placement.mode == "sync" else [NO_LENDING],
        "planned": {"step_s": planned.step_s, "seconds_per_prompt": planned.seconds_per_prompt, "bound": planned.bound},
    }
