"""Size of an image as a JPEG file: the simplest rewards there are, without any model.

Compressibility is -(bytes / 1000) / 500 with quality 95, the published formula (DDPO's reward as VeRL-Omni scales it);
incompressibility is its negative.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from PIL import Image

from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.images import Pixels, sample_pictures
from omni_portable.reward.jpeg import JpegOptions


def jpeg_kilobytes(pixels: Pixels, quality: int) -> float:
    """Size in kilobytes (1000 bytes) of (H, W, 3) uint8 RGB pixels as a JPEG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=quality)
    return buffer.tell() / 1000.0


class JpegCompressibility:
    """score = -kilobytes / `kilobytes_per_point` (0 is the unreachable best); component 'kilobytes'.

    Of a video, kilobytes are the mean over the frames that are looked at.
    """

    name = "jpeg_compressibility"
    sign: ClassVar[float] = -1.0

    def __init__(self, options: JpegOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: options.modality})

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        sizes = [self._kilobytes(sample) for sample in batch]
        scores = [self.sign * size / self.options.kilobytes_per_point for size in sizes]
        return RewardOutput(scores=scores, components={"kilobytes": sizes})

    def _kilobytes(self, sample: RewardSample) -> float:
        options = self.options
        asked_by = f"the {self.name} scorer"
        pictures = sample_pictures(sample, options.artifact, options.modality, options.every, asked_by)
        return fmean(jpeg_kilobytes(picture, options.quality) for picture in pictures)


class JpegIncompressibility(JpegCompressibility):
    """score = +kilobytes / `kilobytes_per_point`; component 'kilobytes'."""

    name = "jpeg_incompressibility"
    sign: ClassVar[float] = 1.0
