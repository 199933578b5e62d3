"""Media of validation samples as parts of a page: inside it while they are small, otherwise as links beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from omni_portable.trainer.report.markup import esc
from omni_portable.trainer.report.read import Validation

MAX_SIDE = 320
MAX_MEDIA_BYTES = 12_000_000
"""Encoded bytes of videos and sounds in one report; what goes beyond is linked to."""
MAX_TEXT = 1500
"""Characters shown of a text; all of it is in samples.jsonl."""
TYPES = {".mp4": "video/mp4", ".wav": "audio/wav", ".png": "image/png"}


@dataclass
class Budget:
    """Encoded bytes that may still be put into the page."""

    left: int = MAX_MEDIA_BYTES

    def take(self, size: int) -> bool:
        """Whether `size` bytes fit; they are then used up."""
        if size > self.left:
            return False
        self.left -= size
        return True


def has_something(sample: Mapping[str, Any]) -> bool:
    """Whether there is anything to look at, listen to, or read."""
    return any(sample.get(name) for name in ("image", "media", "texts"))


def encode_image(validation: Validation, sample: Mapping[str, Any]) -> str:
    """A data URL: small PNG files as they are, larger pictures scaled down and compressed; empty without the file, or
    where it is damaged."""
    return _encoded(validation.folder / str(sample["image"])) if sample.get("image") else ""


def _encoded(path: Path) -> str:
    try:
        return _encode(path)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # what Pillow raises on damaged files
        return ""


def inputs(validation: Validation, sample: Mapping[str, Any], budget: Budget, page_folder: Path) -> str:
    """What the model was given with the prompt: pictures, videos and sounds, each with its name."""
    prompt = str(sample.get("prompt", ""))
    return "".join(
        f'<div class="input">{_input(validation.folder / file, f"{name} given with {prompt}", budget, page_folder)}'
        f"<span>{esc(name)}</span></div>"
        for name, file in sorted(_files(sample, "inputs").items())
    )


def _input(path: Path, what: str, budget: Budget, page_folder: Path) -> str:
    """A picture scaled down and compressed, or a player."""
    if path.suffix != ".png":
        return _player(path, what, budget, page_folder)
    url = _encoded(path)
    if url and budget.take(len(url)):
        return f'<img src="{url}" alt="{esc(what)}" loading="lazy">'
    return _player(path, what, budget, page_folder)


def _files(sample: Mapping[str, Any], key: str) -> dict[str, str]:
    """Name -> file of a row's part; nothing where a damaged row holds something else."""
    found = sample.get(key)
    return {str(name): str(file) for name, file in found.items()} if isinstance(found, Mapping) else {}


def players(validation: Validation, sample: Mapping[str, Any], budget: Budget, what: str, page_folder: Path) -> str:
    """Videos and sounds of a sample, playable; a sound that a video of the sample carries is not shown again."""
    files = _files(sample, "media")
    has_video = any(file.endswith(".mp4") for file in files.values())
    sounds = [name for name, file in files.items() if file.endswith(".wav")]
    hidden = set(sounds) if has_video and len(sounds) == 1 else set()
    return "".join(
        _player(validation.folder / file, f"{name} of {what}", budget, page_folder)
        for name, file in sorted(files.items())
        if name not in hidden
    )


def spoken(sample: Mapping[str, Any]) -> str:
    """Texts of a sample, such as its response."""
    texts = sample.get("texts")
    if not isinstance(texts, Mapping):
        return ""
    return "".join(f"<blockquote>{esc(_shortened(str(text)))}</blockquote>" for _, text in sorted(texts.items()))


def _player(path: Path, what: str, budget: Budget, page_folder: Path) -> str:
    """One medium; a link where it does not fit, a note where it cannot be read."""
    kind = TYPES.get(path.suffix, "")
    try:
        content = path.read_bytes() if kind else b""
    except OSError:
        content = b""
    if not content:
        return f'<span class="noimage">no {esc(what)}</span>'
    label = esc(what)
    if budget.take(len(content) * 4 // 3):
        url = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    elif path.is_relative_to(page_folder):
        url = path.relative_to(page_folder).as_posix()
    else:
        return f"<span>{label}: {esc(path)}</span>"
    if kind == "video/mp4":
        return f'<video controls loop preload="metadata" src="{esc(url)}" aria-label="{label}"></video>'
    if kind == "audio/wav":
        return f'<audio controls preload="metadata" src="{esc(url)}" aria-label="{label}"></audio>'
    return f'<img src="{esc(url)}" alt="{label}" loading="lazy">'


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


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} … ({len(text)} characters)"
