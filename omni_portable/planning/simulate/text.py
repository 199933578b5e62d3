"""A simulated run in words, and as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from omni_portable.planning.placement.model import Prediction
from omni_portable.planning.simulate.run import Outcome
from omni_portable.planning.simulate.workload import Workload

NOT_LENT = "nothing is lent here (trainer.hybrid): --lend 1 simulates it, beside the same run without"


def outcome_as_text(
    name: str, workload: Workload, outcome: Outcome, planned: Prediction, without: Outcome | None = None
) -> str:
    """The figures, beside those of the planner, and of the same run without lending where there is one."""
    placed, loan = workload.placement, workload.loan
    head = (
        f"{name}\n{placed.mode} {placed.split} on {placed.devices} devices, {outcome.steps} steps of {placed.prompts} "
        f"prompts x {workload.samples} samples, {workload.piece} per call, times {workload.times}"
    )
    rows = _rows(outcome, planned)
    if loan is not None:
        head += (
            f"\nreplicas on the trainer's devices: {loan.replicas}xTP{placed.tensor_parallel}, lent below "
            f"{loan.lend_below:.0%} of a step's samples, taken back at {loan.reclaim_at:.0%}"
        )
        rows["lent"] = (
            f"{outcome.lends} times, {outcome.lent_s / outcome.total_s if outcome.total_s else 0.0:.0%} of the time, "
            f"drawing {outcome.lent_busy:.0%} of that; {outcome.lent_samples:.0%} of all samples"
        )
    lines = [head, *(f"  {label:<22}{value}" for label, value in rows.items())]
    if without is not None:
        change = outcome.samples_per_s / without.samples_per_s - 1 if without.samples_per_s else 0.0
        lines += ["without lending", *(f"  {label:<22}{value}" for label, value in _rows(without, planned).items())]
        lines.append(f"lending changes samples per second by {change:+.1%}")
    elif placed.mode != "sync" and loan is None:
        lines.append(f"note: {NOT_LENT}")
    return "\n".join(lines)


def outcome_as_data(
    name: str, workload: Workload, outcome: Outcome, planned: Prediction, without: Outcome | None = None
) -> dict[str, Any]:
    """For `--json`."""
    work = dataclasses.asdict(workload)
    for field in ("rollout_ratios", "train_ratios"):
        del work[field]
    return {
        "profile": name,
        "workload": work,
        "outcome": _figures(outcome),
        "without_lending": None if without is None else _figures(without),
        "notes": [] if workload.placement.mode == "sync" or workload.loan is not None else [NOT_LENT],
        "planned": {"step_s": planned.step_s, "seconds_per_prompt": planned.seconds_per_prompt, "bound": planned.bound},
    }


def _rows(outcome: Outcome, planned: Prediction) -> dict[str, str]:
    groups = sum(outcome.staleness.values())
    staleness = ", ".join(f"{value}: {count / groups:.0%}" for value, count in outcome.staleness.items())
    difference = outcome.step_s / planned.step_s - 1 if planned.step_s else 0.0
    rows = {
        "seconds per prompt": f"{outcome.seconds_per_prompt:.4g} (planner: {planned.seconds_per_prompt:.4g})",
        "seconds per step": f"{outcome.step_s:.4g} (planner: {planned.step_s:.4g}, {difference:+.1%})",
        "samples per second": f"{outcome.samples_per_s:.4g}",
        "simulated time": f"{outcome.total_s:.4g} s, {outcome.syncs} weight syncs, {outcome.events} events",
        "devices busy": f"rollout {outcome.rollout_busy:.0%}, trainer {outcome.train_busy:.0%}",
        "staleness of groups": staleness or "none were trained on",
        "evicted groups": str(outcome.evicted_groups),
        "calls waiting": f"{outcome.queue_mean:.1f} on average, {outcome.queue_max} at most",
        "groups in the buffer": f"{outcome.buffer_mean:.1f} on average, {outcome.buffer_max} at most",
    }
    if outcome.interrupted:
        rows["interrupted calls"] = f"{outcome.interrupted}, {outcome.lost:.1%} of all drawing lost"
    return rows


def _figures(outcome: Outcome) -> dict[str, Any]:
    figures = dataclasses.asdict(outcome)
    del figures["trace"]
    return figures
