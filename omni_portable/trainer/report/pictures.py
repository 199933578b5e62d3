"""Before and after, sample by sample: the same held-out prompts with the same noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.trainer.report.markup import Raw, esc, number
from omni_portable.trainer.report.media import Budget, encode_image, has_something, inputs, players, spoken
from omni_portable.trainer.report.read import RunData, Validation, finite

MAX_PAIRS = 24
MAX_BYTES = 2_000_000
"""Bytes of encoded pictures in one report."""


def pictures(data: RunData, page_folder: Path | None = None) -> Raw:
    """Pairs of the first and the last validation, in request order (none is picked by its score).

    Args:
        page_folder: where the page will be, for links to media that are too large for it (the run directory if None).
    """
    to_show = [v for v in data.validations if any(has_something(sample) for sample in v.samples)]
    if not to_show:
        return Raw("<p>No validation samples to look at have been written.</p>")
    first, last = to_show[0], to_show[-1]
    if first is last:
        intro = f"<p>Validation at step {first.step}; there is no other to compare it with.</p>"
    else:
        intro = (
            f"<p>Left: step {first.step}. Right: step {last.step}. Same prompts, same noise; in the order of the data, "
            "none picked by its score.</p>"
        )
    return Raw(intro + _pairs(first, last, page_folder or data.run_dir))


def _pairs(first: Validation, last: Validation, page_folder: Path) -> str:
    after = {_identity(sample): sample for sample in last.samples}
    cards: list[str] = []
    used = left_out = 0
    budget = Budget()
    for before in first.samples:
        other = after.get(_identity(before))
        if not has_something(before) or other is None:
            continue
        sides = [(first, before)] if first is last else [(first, before), (last, other)]
        images = [encode_image(validation, sample) for validation, sample in sides]
        used += sum(len(image) for image in images)
        if len(cards) >= MAX_PAIRS or used > MAX_BYTES:
            left_out += 1
            continue
        views = [_side(v, s, image, budget, page_folder) for (v, s), image in zip(sides, images, strict=True)]
        cards.append(_card(before, inputs(first, before, budget, page_folder), views))
    note = f"<p>{left_out} more are in the run directory.</p>" if left_out else ""
    wide = " wide" if any(sample.get("media") or sample.get("texts") for sample in first.samples) else ""
    return f'<div class="pairs{wide}">{"".join(cards)}</div>{note}'


def _identity(sample: Mapping[str, Any]) -> tuple[str, str]:
    return str(sample.get("prompt_id")), str(sample.get("sample_index"))


def _card(sample: Mapping[str, Any], given: str, views: list[str]) -> str:
    """The prompt, what came with it, and the samples side by side."""
    shown = f'<div class="inputs">{given}</div>' if given else ""
    caption = f"<figcaption>{esc(sample.get('prompt', ''))}</figcaption>"
    return f'<figure class="pair">{caption}{shown}<div>{"".join(views)}</div></figure>'


def _side(validation: Validation, sample: Mapping[str, Any], image: str, budget: Budget, page_folder: Path) -> str:
    score = finite(sample.get("score"))
    shown = "no score" if score is None else number(score, 2)
    what = f"{sample.get('prompt', '')} at step {validation.step}, score {shown}"
    view = players(validation, sample, budget, what, page_folder) + spoken(sample)
    if sample.get("image") or not view:
        missing = '<span class="noimage">no image</span>'
        view = (f'<img src="{image}" alt="{esc(what)}" loading="lazy">' if image else missing) + view
    read = "".join(f"<span>{esc(name)}: {esc(value)}</span>" for name, value in flat_details(sample.get("details")))
    return f'<div class="side">{view}<b>{esc(shown)}</b>{read}</div>'


def flat_details(value: Any, label: str = "detail") -> list[tuple[str, str]]:
    """What scorers said of a sample, as short lines; 'text' is shown as 'reads'."""
    if isinstance(value, Mapping):
        named = [(("reads" if name == "text" else str(name)), inner) for name, inner in value.items()]
        return [line for name, inner in named for line in flat_details(inner, name)]
    if value is None:
        return []
    return [(label, f"“{value}”" if isinstance(value, str) else str(value))]
