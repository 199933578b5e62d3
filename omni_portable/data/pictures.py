"""Still pictures out of files and bytes, as 8-bit RGB. Only formats of :data:`FORMATS` are looked for."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features

from omni_portable.contracts.errors import DataError
from omni_portable.data.limits import REPLACE

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
"""As Pillow calls them (MPO comes with JPEG). Its other readers are for formats nobody trains on, and one of them
starts a program (EPS)."""
_OPTIONAL = {"WEBP": "webp", "JPEG2000": "jpg_2000", "AVIF": "avif"}
"""Formats that Pillow may have been built without -> the feature that they need."""
_DEEP = 65535
"""White of a picture with 16 bits per pixel."""


def read_picture(content: Path | bytes, what: str) -> Image.Image:
    """An RGB picture of 8 bits per channel, turned upright as its EXIF data say; transparency is dropped.

    Grey pictures of 16 bits are scaled to 8, so that their white stays white.

    Args:
        what: where the content came from, for messages.

    Raises:
        DataError: no picture in a known format, a damaged one, or pixels without a known white (32 bits, floats).
    """
    formats = _readable()
    try:
        with Image.open(content if isinstance(content, Path) else io.BytesIO(content), formats=formats) as picture:
            upright = ImageOps.exif_transpose(picture)
            return _eight_bits(upright, what) if upright.mode[0] in "IF" else upright.convert("RGB")
    except UnidentifiedImageError as error:
        raise DataError(
            f"{what}: no picture that can be decoded: it is in none of the formats {', '.join(formats)}", remedy=REPLACE
        ) from error
    except DataError:
        raise
    except Exception as error:  # Pillow raises whatever damaged numbers lead to, and nothing else runs in here
        raise DataError(f"{what}: no picture that can be decoded: {_reason(error)}", remedy=REPLACE) from error


@cache
def _readable() -> tuple[str, ...]:
    """Formats of the list that this Pillow was built with."""
    supported = features.get_supported()
    return tuple(name for name in FORMATS if _OPTIONAL.get(name) in (None, *supported))


def _eight_bits(picture: Image.Image, what: str) -> Image.Image:
    """A grey picture of 16 bits (modes I;16 and I) as RGB."""
    pixels = np.asarray(picture)
    if picture.mode == "F" or int(pixels.min()) < 0 or int(pixels.max()) > _DEEP:
        kind = "floats" if picture.mode == "F" else f"values from {pixels.min()} to {pixels.max()}"
        raise DataError(
            f"{what}: its pixels are {kind}, and nothing says which of them is white",
            remedy="save the picture with 8 or 16 bits per channel, e.g. as PNG",
        )
    scaled = (pixels.astype(np.uint32) * 255 + _DEEP // 2) // _DEEP
    return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")


def _reason(error: Exception) -> str:
    """An error's text without addresses of objects, or its kind where it has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    return text if text and "object at 0x" not in text else f"its data are damaged ({type(error).__name__})"
