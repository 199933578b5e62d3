"""Pixels as a Qwen vision tower reads them: resized to whole patches, normalised, cut into patches.

The arithmetic is that of the processors published with these models: sides rounded to multiples of a merged patch
within a budget of pixels, bicubic resizing with antialiasing, patches in merge order. Written here once for images and
videos, so that no image library has to be installed beside torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omni_portable.contracts.errors import ArtifactError, ModelError
from omni_portable.models.folders import read_json, whole_numbers

MAX_RATIO = 200
"""Largest ratio of an image's sides."""


@dataclass(frozen=True)
class VisionSettings:
    """What `preprocessor_config.json` (or its counterpart for videos) says.

    Args:
        patch / merge / temporal: pixels of a patch's side, patches of a merged patch's side, frames of a patch.
        min_pixels / max_pixels: budget of an image, or of all frames of a video together where `whole_video`.
        mean / std: of the three channels, for pixels in [0, 1].
    """

    patch: int
    merge: int
    temporal: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    whole_video: bool = False

    @property
    def unit(self) -> int:
        """Pixels that a side is a multiple of."""
        return self.patch * self.merge


def read_settings(path: Path, *, whole_video: bool = False) -> VisionSettings:
    """Settings of a preprocessor file.

    Raises:
        ModelError: the file is missing, or lacks a key.
    """
    config = read_json(path)
    whole_numbers(path, config, ("patch_size", "merge_size", "temporal_patch_size"))
    size = config.get("size") or {}
    return VisionSettings(
        patch=config["patch_size"],
        merge=config["merge_size"],
        temporal=config["temporal_patch_size"],
        min_pixels=_pixels(path, config, size, "min_pixels", "shortest_edge"),
        max_pixels=_pixels(path, config, size, "max_pixels", "longest_edge"),
        mean=_channels(path, config, "image_mean"),
        std=_channels(path, config, "image_std"),
        whole_video=whole_video,
    )


def patches(frames: torch.Tensor, settings: VisionSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches of one image or video.

    Args:
        frames: (T, 3, H, W) uint8; T is 1 for an image. The last frame is repeated to fill a temporal patch.

    Returns:
        (N, 3 * temporal * patch * patch) fp32, and its grid (1, 3) int64: temporal patches, rows, columns.

    Raises:
        ArtifactError: a side that is far longer than the other.
    """
    count, _, height, width = frames.shape
    height, width = target_size(count, height, width, settings)
    if (height, width) != tuple(frames.shape[2:]):
        frames = torch.nn.functional.interpolate(frames, (height, width), mode="bicubic", antialias=True)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) * 255.0 for values in (settings.mean, settings.std))
    pixels = (frames.float() - mean) / std
    missing = -count % settings.temporal
    pixels = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
    patch, merge, temporal = settings.patch, settings.merge, settings.temporal
    grid = (len(pixels) // temporal, height // patch, width // patch)
    blocks = pixels.reshape(
        grid[0], temporal, 3, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch
    ).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return blocks.reshape(math.prod(grid), -1), torch.tensor([grid], dtype=torch.int64)


def target_size(frames: int, height: int, width: int, settings: VisionSettings) -> tuple[int, int]:
    """Sides to resize to: the nearest multiples of the unit, then scaled into the budget.

    Raises:
        ArtifactError: a side that is more than 200 times the other.
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ArtifactError(f"an image of {height} x {width} pixels is longer than {MAX_RATIO} times its width")
    unit = settings.unit
    rounded = [max(unit, round(side / unit) * unit) for side in (height, width)]
    depth = math.ceil(frames / settings.temporal) * settings.temporal if settings.whole_video else 1
    given = (frames if settings.whole_video else 1) * height * width
    if depth * math.prod(rounded) > settings.max_pixels:
        shrink = math.sqrt(given / settings.max_pixels)
        rounded = [max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width)]
    elif depth * math.prod(rounded) < settings.min_pixels:
        grow = math.sqrt(settings.min_pixels / given)
        rounded = [math.ceil(side * grow / unit) * unit for side in (height, width)]
    return rounded[0], rounded[1]


def _pixels(path: Path, config: Mapping[str, Any], size: Mapping[str, Any], name: str, edge: str) -> int:
    value = config.get(name, size.get(edge))
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"the model file {path} has neither '{name}' nor size.{edge}")
    return value


def _channels(path: Path, config: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = config.get(name)
    if not isinstance(values, list) or len(values) != 3:
        raise ModelError(f"the model file {path}: '{name}' is {values!r}, not three numbers")
    return tuple(float(value) for value in values)
