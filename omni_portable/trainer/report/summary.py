"""The top of the report: the result in one sentence and four figures, and what was run."""

from __future__ import annotations

from omni_portable.trainer.report.markup import Raw, esc, number, section, table
from omni_portable.trainer.report.outcome import Outcome, figure, read_outcome
from omni_portable.trainer.report.read import RunData


def summary_section(data: RunData) -> Raw:
    """Result first; then the run in a table."""
    outcome = read_outcome(data)
    body = [f'<p class="lead">{esc(outcome.sentence())}</p>', _figures(outcome), _status(data)]
    if outcome.paired_error is not None and outcome.samples != 1:
        body.append(
            '<p class="note">Errors are standard errors. That of the rise takes both validations as independent; '
            f"paired by prompt and noise it is {number(outcome.paired_error)}.</p>"
        )
    body.append(_facts(data))
    if data.plan:
        body.append(f'<pre class="plan">{esc(data.plan)}</pre>')
    return section("Result", "result", *body)


def _figures(outcome: Outcome) -> str:
    rise, sigma = outcome.shown_rise, outcome.sigma
    verdict = "" if rise is None else "good" if outcome.clear else "bad" if rise < 0 else "unsure"
    one = outcome.samples == 1
    cards = [
        ("before training", _with_error(outcome.before, outcome.before_error, one), ""),
        ("after training", _with_error(outcome.after, outcome.after_error, one), ""),
        ("rise", _with_error(rise, outcome.error, one, signed=True), verdict),
        ("in standard errors", "–" if sigma is None else f"{figure(sigma, signed=True, digits=1)} σ", verdict),
    ]
    items = "".join(
        f'<div class="card {kind}"><b>{esc(value)}</b><span>{name}</span></div>' for name, value, kind in cards
    )
    return f'<div class="cards">{items}</div>'


def _with_error(value: float | None, error: float, one: bool, signed: bool = False) -> str:
    """A figure with its standard error, which a single sample does not have."""
    if value is None:
        return "–"
    return figure(value, signed=signed) + ("" if one else f" ± {figure(error)}")


def _status(data: RunData) -> str:
    total = data.setting("trainer.total_steps", "?")
    if data.finished:
        return f'<p><span class="badge good">finished</span> {data.last_step} of {esc(total)} steps</p>'
    return (
        f'<p><span class="badge unsure">unfinished</span> {data.last_step} of {esc(total)} steps so far: these figures '
        "will change.</p>"
    )


def _facts(data: RunData) -> Raw:
    lora = data.setting("model.lora.rank", 0)
    size = f"{data.setting('rollout.height', '?')} x {data.setting('rollout.width', '?')}"
    seconds = sum(value or 0.0 for _, value in data.series("timing_s/step"))
    seconds += sum(value or 0.0 for _, value in data.series("timing_s/validate"))
    scorers = data.setting("reward.scorers", {})
    rewards = [
        f"{name} ({s.get('kind', '?')}, weight {s.get('weight', 1.0)})"
        for name, s in (scorers.items() if isinstance(scorers, dict) else ())
        if isinstance(s, dict)
    ]
    device = data.environment.get("device")
    rows = [
        ("recipe", data.setting("recipe", "?")),
        ("model", f"{data.setting('model.family', '?')} from {data.setting('model.path', '?')}, {size} pixels"),
        ("trained", f"LoRA of rank {lora}" if lora else "all weights of the transformer"),
        ("algorithm", data.setting("algorithm.name", "?")),
        ("reward", ", ".join(rewards) or "?"),
        ("device", f"{device.get('name')}: {device.get('model')}" if isinstance(device, dict) else "?"),
        ("time", f"{seconds / 60:.1f} minutes of training and validation" if seconds else "?"),
        ("seed", data.setting("trainer.seed", "?")),
    ]
    return table(("what", "value"), rows)
