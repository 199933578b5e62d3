"""Before and after, picture by picture: the same held-out prompts with the same noise."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from omni_portable.trainer.report.markup import Raw, esc, number
from omni_portable.trainer.report.read import RunData, Validation, finite

MAX_PAIRS = 24
MAX_SIDE = 320
MAX_BYTES = 2_000_000
"""Bytes of encoded pictures in one report."""


def pictures(data: RunData) -> Raw:
    """Pairs of the first and the last validation, in request order (none is picked by its score)."""
    with_images = [v for v in data.validations if any(sample.get("image") for sample in v.samples)]
    if not with_images:
        return Raw("<p>No validation images have been written.</p>")
    first, last = with_images[0], with_images[-1]
    if first is last:
        intro = f"<p>Validation at step {first.step}; a second one, to compare with, has not run yet.</p>"
    else:
        intro = (
            f"<p>Left: step {first.step}. Right: step {last.step}. Same prompts, same noise; in the order of the data, "
            "none picked by its score.</p>"
        )
    return Raw(intro + _pairs(first, last))


def _pairs(first: Validation, last: Validation) -> str:
    after = {_identity(sample): sample for sample in last.samples}
    cards: list[str] = []
    used = left_out = 0
    for before in first.samples:
        other = after.get(_identity(before))
        if not before.get("image") or other is None:
            continue
        sides = [(first, before)] if first is last else [(first, before), (last, other)]
        images = [encode_image(validation, sample) for validation, sample in sides]
        used += sum(len(image) for image in images)
        if len(cards) >= MAX_PAIRS or used > MAX_BYTES:
            left_out += 1
            continue
        cards.append(_card(before, [(v.step, s, i) for (v, s), i in zip(sides, images, strict=True)]))
    note = f"<p>{left_out} more are in the run directory.</p>" if left_out else ""
    return f'<div class="pairs">{"".join(cards)}</div>{note}'


def _identity(sample: Mapping[str, Any]) -> tuple[str, str]:
    return str(sample.get("prompt_id")), str(sample.get("sample_index"))


def encode_image(validation: Validation, sample: Mapping[str, Any]) -> str:
    """A data URL: small PNG files as they are, larger pictures scaled down and compressed; empty without the file, or
    where it is damaged."""
    try:
        return _encode(validation.folder / str(sample["image"])) if sample.get("image") else ""
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # what Pillow raises on damaged files
        return ""


def _encode(path: Path) -> str:
    with Image.open(path) as image:
        small = max(image.size) <= MAX_SIDE // 2
        if small and image.format == "PNG":
            return _data_url("png", path.read_bytes())
        picture = image.convert("RGB")
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    return _data_url("jpeg", buffer.getvalue())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _card(sample: Mapping[str, Any], sides: list[tuple[int, Mapping[str, Any], str]]) -> str:
    views = "".join(_side(step, side, image) for step, side, image in sides)
    return f'<figure class="pair"><figcaption>{esc(sample.get("prompt", ""))}</figcaption><div>{views}</div></figure>'


def _side(step: int, sample: Mapping[str, Any], image: str) -> str:
    score = finite(sample.get("score"))
    shown = "no score" if score is None else number(score, 2)
    what = f"{sample.get('prompt', '')} at step {step}, score {shown}"
    view = f'<img src="{image}" alt="{esc(what)}" loading="lazy">' if image else '<span class="noimage">no image</span>'
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
