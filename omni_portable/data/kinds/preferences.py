"""Datasets of pairs, of which one side was preferred."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from omni_portable.contracts.errors import DataError
from omni_portable.data.kinds.base import Artifacts, Column, Kind, LeftOut, SourceRow, Values
from omni_portable.data.sources import text_of

SIDES = ("img_win", "img_lose")
_CONTEXT = re.compile(
    r"(?:Image|Video|Audio) file:.*?\sQuestion:\s*(?P<question>.+?)\s+Candidate A:\s*(?P<a>.+?)"
    r"\s+Candidate B:\s*(?P<b>.+?)\s*\Z",
    re.DOTALL,
)
"""The part of a published judge's prompt that holds the question and both answers."""


def _images(source: SourceRow) -> Values | LeftOut:
    if "label_0" in source.row:
        return _labelled_images(source)
    return {
        "prompt": source.prompt("prompt", "caption"),
        "img_win": source.media("img_win", "chosen"),
        "img_lose": source.media("img_lose", "rejected"),
        "win_score": source.number("win_score", 1.0),
        "lose_score": source.number("lose_score", 0.0),
    }


def _labelled_images(source: SourceRow) -> Values | LeftOut:
    """Pick-a-Pic's form: jpg_0, jpg_1, and label_0 = 1 where the first was preferred, 0.5 for a tie."""
    label = source.number("label_0")
    if label == 0.5:
        return LeftOut("tie")
    win, lose = ("0", "1") if label > 0.5 else ("1", "0")
    return {
        "prompt": source.prompt("prompt", "caption"),
        "img_win": source.media(f"jpg_{win}"),
        "img_lose": source.media(f"jpg_{lose}"),
        "win_score": 1.0,
        "lose_score": 0.0,
    }


def _check_images(values: Values, media: Artifacts, where: str) -> None:
    win, lose = (np.asarray(media[side].data) for side in SIDES)
    if win.shape != lose.shape:
        raise DataError(
            f"{where}: the sides of the pair have different sizes: img_win {tuple(win.shape[1:])}, img_lose "
            f"{tuple(lose.shape[1:])}",
            remedy="bring both to one size",
        )
    if np.array_equal(win, lose):
        raise DataError(f"{where}: img_win and img_lose are the same picture, so neither can be preferred")
    _check_scores(values, where)


def _check_scores(values: Values, where: str) -> None:
    win, lose = values.get("win_score"), values.get("lose_score")
    if win is not None and lose is not None and not win > lose:
        raise DataError(
            f"{where}: win_score {win:g} is not above lose_score {lose:g}", remedy="swap the sides, or drop it"
        )


def _answers(source: SourceRow) -> Values | LeftOut:
    """Rows of pairs, or a judge's rows ('messages' and 'solution')."""
    media = {
        name: content
        for name in ("image", "video", "audio")
        if (content := source.optional_media(name, f"{name}s")) is not None
    }
    if not media:
        raise source.error("images", "is missing or empty, as are 'videos' and 'audios': there is no medium")
    if "solution" in source.row:
        judged = _judged(source)
        return judged if isinstance(judged, LeftOut) else {**judged, **media}
    sides = {}
    for side in ("chosen", "rejected"):
        found = text_of(source.row.get(side), f"{source.where}: field '{side}'")
        if found is None:
            raise source.error(side, "is missing or empty")
        sides[side] = found.text.strip()
    scores = {name: source.number(name, default) for name, default in (("win_score", 1.0), ("lose_score", 0.0))}
    return {"prompt": source.question("prompt", "question", media=list(media)), **sides, **scores, **media}


def _judged(source: SourceRow) -> Mapping[str, Any] | LeftOut:
    """The question, both candidates by preference, and their scores."""
    try:
        verdict = json.loads(source.text("solution"))
        better = verdict["better"]
        scores = {side: float(verdict[f"score_{side}"]) for side in ("A", "B")}
    except (ValueError, KeyError, TypeError) as error:
        raise source.error("solution", f"is no verdict with better, score_A and score_B: {error!r}") from error
    if better == "equal":
        return LeftOut("tie")
    found = _CONTEXT.search(source.text("messages"))
    if found is None or better not in scores:
        raise source.error("messages" if found is None else "solution", "does not name a question and two candidates")
    worse = "B" if better == "A" else "A"
    return {
        "prompt": found["question"],
        "chosen": found[better.lower()],
        "rejected": found[worse.lower()],
        "win_score": scores[better],
        "lose_score": scores[worse],
    }


def _check_answers(values: Values, media: Artifacts, where: str) -> None:
    if not media:
        raise DataError(f"{where}: the row has no medium", choices=("image", "video", "audio"))
    if str(values["chosen"]).strip() == str(values["rejected"]).strip():
        raise DataError(f"{where}: chosen and rejected are the same answer, so neither can be preferred")
    _check_scores(values, where)


_SCORES = (Column("win_score", "number", required=False), Column("lose_score", "number", required=False))
_GIVEN = {"engine": "dataset", "n": 2}
_REWARD = {"scorers": {"preference": {"kind": "preference"}}}
PREFERENCE_IMAGES = Kind(
    name="preference-images",
    summary="two pictures for a prompt, the first of which was preferred",
    takes="rows with 'prompt' or 'caption', and 'img_win' and 'img_lose' (or 'chosen' and 'rejected', or Pick-a-Pic's "
    "'jpg_0', 'jpg_1', 'label_0'); 'win_score' and 'lose_score' are 1 and 0 where absent",
    columns=(Column("prompt", "text"), Column("img_win", "image"), Column("img_lose", "image"), *_SCORES),
    convert=_images,
    check=_check_images,
    recipe={
        "data": {"targets": {"image": {"fields": [*SIDES]}}},
        "algorithm": {"name": "diffusion_dpo"},
        "rollout": _GIVEN,
        "reward": _REWARD,
    },
)
PREFERENCE_MULTIMODAL = Kind(
    name="preference-multimodal",
    summary="two answers to a question on a picture, a video or a sound, the first of which was preferred",
    takes="rows with 'prompt', 'chosen', 'rejected' and 'images', 'videos' or 'audios'; or a judge's rows with "
    "'messages' and 'solution'",
    columns=(
        Column("prompt", "text"),
        Column("chosen", "text"),
        Column("rejected", "text"),
        *_SCORES,
        *(Column(name, name, required=False) for name in ("image", "video", "audio")),
    ),
    convert=_answers,
    check=_check_answers,
    recipe={
        "data": {
            "media": {
                "image": {"modality": "image"},
                "video": {"modality": "video", "fps": 2, "max_frames": 8},
                "audio": {"modality": "audio", "sample_rate": 16000},
            },
            "targets": {"response": {"fields": ["chosen", "rejected"]}},
        },
        "algorithm": {"name": "token_dpo"},
        "rollout": _GIVEN,
        "reward": _REWARD,
    },
)
