"""Pictures brought to a size, in one of three declared ways."""

from __future__ import annotations

from PIL import Image, ImageOps

FILTER = Image.Resampling.LANCZOS


def resize_picture(picture: Image.Image, height: int, width: int, how: str) -> Image.Image:
    """An RGB picture of exactly `height` x `width` pixels; one that has that size already is returned as it is.

    Args:
        how: 'pad' shows all of it, centred on white; 'crop' fills the size and cuts the rest; 'stretch' distorts it.
    """
    size = (width, height)
    if picture.size == size:
        return picture
    if how == "pad":
        return ImageOps.pad(picture, size, FILTER, color="white")
    if how == "crop":
        return ImageOps.fit(picture, size, FILTER)
    if how == "stretch":
        return picture.resize(size, FILTER)
    raise ValueError(f"no way of resizing is called '{how}'")
