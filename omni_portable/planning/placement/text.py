"""Advice in words, and as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from omni_portable.planning.placement.advise import Advice, Choice, Option
from omni_portable.planning.placement.keys import keys_in_words, keys_of
from omni_portable.planning.placement.profile import MODES

SHOWN = 4
"""Splits shown per mode and length."""


def advice_as_text(advice: Advice) -> str:
    """Tables by length, the recommendation with its reasons, and what to keep in mind."""
    request, costs = advice.request, advice.fit.costs
    rows = len(advice.profile.rows)
    tokens = any(row.tokens for row in advice.profile.rows)
    rollout, training = (
        f"{fixed:.4g}" + (f" + {each:.4g} per token" if tokens else "")
        for fixed, each in ((costs.rollout_fixed, costs.rollout_token), (costs.train_fixed, costs.train_token))
    )
    lines = [
        f"{advice.profile.name}: {request.devices} device{'s' * (request.devices != 1)}, seconds per prompt",
        f"  from {rows} measurement{'s' * (rows != 1)}, which the fitted costs give back within {advice.fit.error:.1%}"
        + (f" ({advice.profile.source})" if advice.profile.source else ""),
        f"  device-seconds per prompt: rollout {rollout}, training {training}",
    ]
    for choice in advice.choices:
        lines += ["", *_choice_lines(choice)]
    if advice.crossovers:
        lengths = ", ".join(f"{tokens:.0f}" for tokens in advice.crossovers)
        lines += ["", f"sync and the best separate split are even at {lengths} tokens"]
    lines += ["", *(f"note: {note}" for note in advice.notes)]
    return "\n".join(lines)


def _choice_lines(choice: Choice) -> list[str]:
    lines = [f"at {choice.tokens:g} tokens per response:" if choice.tokens else "samples as measured:"]
    lines.append(
        f"  {'':<35}{'':>10}  {'devices busy':>17}\n"
        f"  {'mode':<15}{'trainer+rollout':<20}{'s/prompt':>10}  {'rollout':>8}{'trainer':>9}  held up by"
    )
    shown, hidden = dict.fromkeys(MODES, 0), len(choice.options)
    for option in choice.options:
        mode = option.prediction.placement.mode
        shown[mode] += 1
        if shown[mode] <= SHOWN or option is choice.recommended:
            lines.append(_option_line(option, option is choice.recommended))
            hidden -= 1
    if hidden:
        lines.append(f"  ... and {hidden} slower splits (--json lists all)")
    placed = choice.recommended.prediction.placement
    lines.append(f"  recommended: {placed.mode} {placed.split}")
    tokens = bool(choice.tokens)
    lines += [f"    {line}" for line in keys_in_words(placed, tokens)]
    if not keys_of(placed):
        placeable = (o.prediction.placement for o in choice.options if keys_of(o.prediction.placement))
        if (other := next(placeable, None)) is not None:
            lines.append(f"    the best that can be placed, {other.mode} {other.split}:")
            lines += [f"      {line}" for line in keys_in_words(other, tokens)]
    return lines + [f"    {reason}" for reason in choice.reasons]


def _option_line(option: Option, recommended: bool) -> str:
    found, placed = option.prediction, option.prediction.placement
    wide = option.high > option.low * 1.01
    spread = f"  ({option.low:.3f} to {option.high:.3f})" if wide else ""
    return (
        f"{'* ' if recommended else '  '}{placed.mode:<15}{placed.split:<20}{found.seconds_per_prompt:>10.3f}  "
        f"{found.rollout_busy:>8.0%}{found.train_busy:>9.0%}  {found.bound}{spread}"
    )


def advice_as_data(advice: Advice) -> dict[str, Any]:
    """For `--json`; all seconds are of a step unless the key says per prompt."""
    return {
        "profile": {"name": advice.profile.name, "source": advice.profile.source, "rows": len(advice.profile.rows)},
        "devices": advice.request.devices,
        "fit": {"relative_error": advice.fit.error, "costs": dataclasses.asdict(advice.fit.costs)},
        "lengths": [
            {
                "tokens": choice.tokens,
                "recommended": _option_data(choice.recommended, bool(choice.tokens)),
                "reasons": list(choice.reasons),
                "options": [_option_data(option, bool(choice.tokens)) for option in choice.options],
            }
            for choice in advice.choices
        ],
        "crossover_tokens": list(advice.crossovers),
        "notes": list(advice.notes),
    }


def _option_data(option: Option, tokens: bool) -> dict[str, Any]:
    found = option.prediction
    stages = dataclasses.asdict(found)
    placed = stages.pop("placement")
    del stages["tokens"]
    return {
        **placed,
        "train_devices": found.placement.train_devices,
        "keys": list(keys_of(found.placement, tokens)),
        "replicas": found.placement.replicas,
        **stages,
        "seconds_per_prompt_range": [option.low, option.high],
        "rollout_busy": found.rollout_busy,
        "train_busy": found.train_busy,
    }
