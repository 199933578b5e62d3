"""Datasets of prompts alone."""

from __future__ import annotations

from omni_portable.config.shown import shown
from omni_portable.data.kinds.base import Column, Kind, LeftOut, SourceRow, Values
from omni_portable.data.text import QUOTED

MIN_SPACES = 5
"""Spaces that a PickScore prompt has at least, as published: shorter ones say too little."""


def _ocr(source: SourceRow) -> Values:
    prompt = source.text("prompt", "text")
    wanted = source.optional_text("ground_truth") or " ".join(QUOTED.findall(prompt))
    if not wanted:
        raise source.error(
            "prompt", f"has no text between double quotes: {shown(prompt)}", 'quote the text to be shown: "OPEN"'
        )
    return {"prompt": prompt, "ground_truth": wanted}


def _pickscore(source: SourceRow) -> Values | LeftOut:
    prompt = " ".join(source.text("prompt", "caption", "text").split())
    return LeftOut("too short") if prompt.count(" ") < MIN_SPACES else {"prompt": prompt}


def _t2va(source: SourceRow) -> Values:
    return {"prompt": source.text("prompt", "text", "caption")}


OCR_PROMPTS = Kind(
    name="ocr-prompts",
    summary="prompts for pictures that show a text; the text is what stands between double quotes",
    takes=".txt lines, or rows with 'prompt' or 'text' (and 'ground_truth' where it is not quoted)",
    columns=(Column("prompt", "text"), Column("ground_truth", "text")),
    convert=_ocr,
    recipe={"reward": {"scorers": {"ocr": {"kind": "ocr", "detect": True}}}},
)
PICKSCORE_PROMPTS = Kind(
    name="pickscore-prompts",
    summary=f"captions of at least {MIN_SPACES + 1} words, each once, white space normalised",
    takes=".txt lines, or rows with 'prompt', 'caption' or 'text'",
    columns=(Column("prompt", "text"),),
    convert=_pickscore,
    once="prompt",
)
T2VA = Kind(
    name="t2va",
    summary="prompts for video with sound",
    takes=".txt lines, or rows with 'prompt', 'text' or 'caption'",
    columns=(Column("prompt", "text"),),
    convert=_t2va,
)
