"""Images on disk and on one sheet: PNG files, and a labelled grid for people to look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.pictures import read_picture

if TYPE_CHECKING:
    import torch

    Picture = MediaArtifact | torch.Tensor | np.ndarray[Any, Any]

PAD = 4
FONT_SIZE = 13
SMALL_SIDE = 96
"""Images whose shorter side is below this many pixels are enlarged by a whole factor on grids."""


def to_pil(image: Picture) -> Image.Image:
    """An RGB picture from uint8 (3, H, W) pixels.

    Raises:
        ArtifactError: not an image artifact, or another shape or dtype.
    """
    if isinstance(image, MediaArtifact) and image.modality != "image":
        raise ArtifactError(f"artifact '{image.name}' is {image.modality}, not an image")
    data: Any = image.data if isinstance(image, MediaArtifact) else image
    pixels = data if isinstance(data, np.ndarray) else data.detach().cpu().numpy()
    if pixels.ndim != 3 or pixels.shape[0] != 3 or pixels.dtype != np.uint8:
        raise ArtifactError(f"an image must be uint8 (3, H, W), got {pixels.dtype} {pixels.shape}")
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def write_image(image: Picture, path: Path) -> None:
    """Write uint8 (3, H, W) pixels as a PNG file, without loss."""
    to_pil(image).save(path, format="PNG")


def read_image(path: Path, name: str = "image") -> MediaArtifact:
    """An image file as an artifact of uint8 (3, H, W) RGB pixels.

    Raises:
        DataError: the file is missing or no image.
    """
    import torch

    pixels = np.array(read_picture(path, str(path)))
    return MediaArtifact(name, "image", torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), "CHW")


def image_grid(
    images: Sequence[Picture],
    captions: Sequence[str],
    columns: int = 0,
    scale: int = 0,
) -> Image.Image:
    """Pictures in rows, each with its caption below.

    Args:
        images: uint8 (3, H, W) each, at least one.
        captions: one per image; lines are separated by newlines and cut where they are too long.
        columns: 0 makes the grid about square.
        scale: whole factor of enlargement, nearest neighbour; 0 enlarges small images until details can be seen.
    """
    if not images or len(images) != len(captions):
        raise ArtifactError(f"a grid needs one caption per image, got {len(images)} images, {len(captions)} captions")
    pictures = [_enlarge(to_pil(image), scale) for image in images]
    font = ImageFont.load_default(FONT_SIZE)
    texts = [caption.split("\n") for caption in captions]
    line = FONT_SIZE + 3
    width = max(SMALL_SIDE, *(p.width for p in pictures)) + 2 * PAD
    height = max(p.height for p in pictures) + max(len(t) for t in texts) * line + 3 * PAD
    columns = columns or math.ceil(math.sqrt(len(pictures)))
    sheet = Image.new(
        "RGB", (min(columns, len(pictures)) * width, math.ceil(len(pictures) / columns) * height), "white"
    )
    draw = ImageDraw.Draw(sheet)
    for index, (picture, lines) in enumerate(zip(pictures, texts, strict=True)):
        x, y = index % columns * width + PAD, index // columns * height + PAD
        sheet.paste(picture, (x, y))
        for number, text in enumerate(lines):
            cut = _fit(text, font, width - 2 * PAD)
            draw.text((x, y + picture.height + PAD + number * line), cut, fill="black", font=font)
    return sheet


def _enlarge(picture: Image.Image, scale: int) -> Image.Image:
    factor = scale or max(1, math.ceil(SMALL_SIDE / min(picture.size)))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def _fit(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """`text`, cut with '...' where it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
