"""The scorers 'video_motion' and 'video_flicker': does something move, and is the light steady? Specs only."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class VideoMotionOptions:
    artifact: str = "video"
    """Name of the video artifact to look at."""
    full: float = 0.02
    """Mean change of brightness between neighbouring frames (of 1, black to white) that scores 1."""

    def __post_init__(self) -> None:
        if not 0 < self.full <= 1:
            raise ConfigError(f"the video_motion scorer's option full={self.full} must lie above 0 and at most at 1")


@dataclass(frozen=True)
class VideoFlickerOptions:
    artifact: str = "video"
    """Name of the video artifact to look at."""
    full: float = 0.05
    """Mean brightness that comes and goes from frame to frame (of 1, black to white) at which the score is 0."""
    grid: int = 8
    """The picture is divided into so many parts each way, whose mean brightness is followed."""

    def __post_init__(self) -> None:
        if not 0 < self.full <= 1:
            raise ConfigError(f"the video_flicker scorer's option full={self.full} must lie above 0 and at most at 1")
        if self.grid < 1:
            raise ConfigError(f"the video_flicker scorer's option grid={self.grid} must be at least 1")


_NEEDS = {"artifacts": {"artifact": "video"}}
MOTION = PluginSpec(
    name="video_motion",
    summary="mean change between neighbouring frames, up to a full score: rewards videos that are no still",
    target="omni_portable.reward.video_scorers:VideoMotionScorer",
    options=VideoMotionOptions,
    capabilities=_NEEDS,
)
FLICKER = PluginSpec(
    name="video_flicker",
    summary="1 where brightness changes steadily, 0 where it comes and goes from frame to frame",
    target="omni_portable.reward.video_scorers:VideoFlickerScorer",
    options=VideoFlickerOptions,
    capabilities=_NEEDS,
)
