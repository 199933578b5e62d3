"""How a Qwen vision tower reads pixels, as its preprocessor files say; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import ModelError
from omni_portable.models.folders import read_json, whole_numbers


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
