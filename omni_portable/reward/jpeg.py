"""The scorers 'jpeg_compressibility' and 'jpeg_incompressibility': how small or large an image is as a JPEG file."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.reward.looking import Looked, check_every


@dataclass(frozen=True)
class JpegOptions:
    artifact: str = "image"
    """Name of the artifact to compress."""
    modality: Looked = "image"
    """What it is: 'image', or 'video', of which every `every`-th frame counts alike."""
    every: int = 4
    """Step between the frames of a video that are looked at."""
    quality: int = 95
    """JPEG quality, 1 to 100; 95 as published."""
    kilobytes_per_point: float = 500.0
    """Kilobytes (1000 bytes) that change the score by 1; 500 as published, which is meant for 512 x 512 pixels."""

    def __post_init__(self) -> None:
        check_every("jpeg", self.every)
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"the jpeg scorer's option quality={self.quality} must lie between 1 and 100")
        if not self.kilobytes_per_point > 0:
            raise ConfigError(f"the jpeg scorer's option kilobytes_per_point={self.kilobytes_per_point} must be > 0")


COMPRESSIBILITY = PluginSpec(
    name="jpeg_compressibility",
    summary="- kilobytes of the image as JPEG (quality 95) / 500: rewards images that compress well",
    target="omni_portable.reward.jpeg_scorer:JpegCompressibility",
    options=JpegOptions,
    capabilities={"artifacts": {"artifact": "modality"}, "fields": ()},
)

INCOMPRESSIBILITY = PluginSpec(
    name="jpeg_incompressibility",
    summary="+ kilobytes of the image as JPEG (quality 95) / 500: rewards images full of detail",
    target="omni_portable.reward.jpeg_scorer:JpegIncompressibility",
    options=JpegOptions,
    capabilities={"artifacts": {"artifact": "modality"}, "fields": ()},
)
