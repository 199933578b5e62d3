"""Sanity of video: motion and flicker, from the brightness of frames alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import require_artifact
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.video import VideoFlickerOptions, VideoMotionOptions

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""
Brightness = np.ndarray[Any, np.dtype[np.float32]]
"""(T, H, W) in [0, 1]."""


def brightness(sample: RewardSample, artifact: str, frames: int, asked_by: str) -> Brightness:
    """Brightness of the sample's video.

    Raises:
        ArtifactError: it is missing, no video, or has fewer than `frames` frames.
    """
    found = require_artifact(sample.artifacts, artifact, "video", f"{asked_by} (sample '{sample.sample_id}')")
    data: Any = found.data
    if data.shape[1] != 3 or data.shape[0] < frames or 0 in data.shape:
        raise ArtifactError(
            f"{asked_by} needs '{artifact}' of sample '{sample.sample_id}' to be (T, 3, H, W) with at least {frames} "
            f"frames, got {tuple(data.shape)}"
        )
    pixels = data.detach().cpu().numpy()
    light = sum(weight * pixels[:, channel].astype(np.float32) for channel, weight in enumerate(LUMA))
    return np.asarray(light, dtype=np.float32) / np.float32(255.0)


class VideoMotionScorer:
    """score = mean |change of brightness| between neighbouring frames / full, at most 1; component 'change'."""

    name = "video_motion"

    def __init__(self, options: VideoMotionOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "video"})

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        lights = [brightness(s, self.options.artifact, 2, "the video_motion scorer") for s in batch]
        changes = [float(np.abs(np.diff(light, axis=0)).mean()) for light in lights]
        return RewardOutput([min(1.0, change / self.options.full) for change in changes], {"change": changes})


class VideoFlickerScorer:
    """score = 1 - flicker / full, at least 0; component 'flicker'.

    Flicker is half the mean |second difference| over time of the mean brightness of each part of the picture: a light
    that goes on and off every frame by d has flicker d, one that rises evenly has none.
    """

    name = "video_flicker"

    def __init__(self, options: VideoFlickerOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "video"})

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        lights = [brightness(s, self.options.artifact, 3, "the video_flicker scorer") for s in batch]
        flickers = [float(np.abs(np.diff(self._parts(light), n=2, axis=0)).mean()) / 2.0 for light in lights]
        return RewardOutput([max(0.0, 1.0 - f / self.options.full) for f in flickers], {"flicker": flickers})

    def _parts(self, light: Brightness) -> Brightness:
        """(T, rows, columns): mean brightness of each part, as many parts as the picture has pixels for."""
        rows, columns = (min(self.options.grid, size) for size in light.shape[1:])
        strips = [strip.mean(axis=1) for strip in np.array_split(light, rows, axis=1)]
        return np.stack([np.stack([p.mean(axis=1) for p in np.array_split(s, columns, axis=1)], 1) for s in strips], 1)
