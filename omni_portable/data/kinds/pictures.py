"""Datasets of prompts with pictures that a sample starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_portable.config.shown import shown
from omni_portable.contracts.errors import DataError
from omni_portable.data.kinds.base import Artifacts, Column, Kind, SourceRow, Values

FRAME_MODES: Mapping[str, tuple[str, ...]] = {
    "first": ("first_frame",),
    "last": ("last_frame",),
    "first_last": ("first_frame", "last_frame"),
}
"""Which frames of a video are given -> their columns."""


def _edit(source: SourceRow) -> Values:
    return {
        "prompt": source.prompt("prompt", "instruction"),
        "image": source.media("image", "images", folders=("", "images")),
    }


def _fl2va(source: SourceRow) -> Values:
    """`images` in the order of `frame_mode`; without a mode one picture is the first frame, two are first and last."""
    images = source.row.get("images")
    count = len(images) if isinstance(images, list) else 0
    named = {name: source.optional_media(name) for name in ("first_frame", "last_frame")}
    given = {name: content for name, content in named.items() if content is not None}
    if given:
        mode = source.optional_text("frame_mode") or ("first_last" if len(given) == 2 else next(iter(given))[:-6])
        return {"prompt": source.prompt("prompt", "text", "caption"), "frame_mode": mode, **given}
    mode = source.optional_text("frame_mode") or {1: "first", 2: "first_last"}.get(count, "")
    if mode not in FRAME_MODES:
        raise _wrong_mode(source.where, mode, count)
    columns = FRAME_MODES[mode]
    if count != len(columns):
        raise source.error(
            "images",
            f"holds {count} condition frames, but frame_mode '{mode}' takes {len(columns)}",
            "mend one of both",
        )
    frames = {name: source.media(f"images.{index}") for index, name in enumerate(columns)}
    return {"prompt": source.prompt("prompt", "text", "caption"), "frame_mode": mode, **frames}


def _wrong_mode(where: str, mode: str, count: int) -> DataError:
    what = f"field 'frame_mode' is {shown(mode)}" if mode else f"field 'images' holds {count} condition frames"
    return DataError(f"{where}: {what}; videos take the first frame, the last, or both", choices=sorted(FRAME_MODES))


def _check_frames(values: Values, media: Artifacts, where: str) -> None:
    mode = str(values["frame_mode"])
    if mode not in FRAME_MODES:
        raise _wrong_mode(where, mode, len(media))
    if sorted(media) != sorted(FRAME_MODES[mode]):
        raise DataError(
            f"{where}: frame_mode '{mode}' takes {' and '.join(FRAME_MODES[mode])}, the row has "
            f"{' and '.join(sorted(media)) or 'none'}"
        )
    sizes: set[Any] = {tuple(getattr(frame.data, "shape", ())) for frame in media.values()}
    if len(sizes) > 1:
        raise DataError(f"{where}: first and last frame have different sizes", remedy="bring them to one size")


IMAGE_EDIT = Kind(
    name="image-edit",
    summary="an instruction and the picture that it changes",
    takes="rows with 'prompt' or 'instruction', and 'image' or 'images' (files beside the source or in images/)",
    columns=(Column("prompt", "text"), Column("image", "image")),
    convert=_edit,
    recipe={"data": {"media": {"image": {"modality": "image", "height": 512, "width": 512}}}},
)
FL2VA = Kind(
    name="fl2va",
    summary="prompts for video with sound that starts from, ends with, or goes between given frames",
    takes="rows with 'prompt', 'images' (one or two) and 'frame_mode' (first, last, first_last)",
    columns=(
        Column("prompt", "text"),
        Column("frame_mode", "text"),
        Column("first_frame", "image", required=False),
        Column("last_frame", "image", required=False),
    ),
    convert=_fl2va,
    check=_check_frames,
    recipe={"data": {"media": {"first_frame": {"modality": "image"}, "last_frame": {"modality": "image"}}}},
)
