"""How much of a medium is wanted, and in which size and rate. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.config.schema import MediaConfig
from omni_portable.contracts.rollout import Extent


@dataclass(frozen=True)
class Wanted:
    """How a medium is wanted; 0 leaves a property as the file has it.

    Args:
        height / width / resize: size of pictures and frames (see :func:`omni_portable.data.resize.resize_picture`).
        fps: frames per second to take, the nearest ones.
        frames: exactly so many frames from the beginning; a shorter video is refused.
        max_frames: at most so many, evenly spread.
        sample_rate: Hz.
        max_seconds: longer sound is cut.
    """

    height: int = 0
    width: int = 0
    resize: str = "pad"
    fps: float = 0.0
    frames: int = 0
    max_frames: int = 0
    sample_rate: int = 0
    max_seconds: float = 0.0


AS_IT_IS = Wanted()


def wanted_input(media: MediaConfig) -> Wanted:
    """As `data.media` says."""
    return Wanted(
        height=media.height,
        width=media.width,
        resize=media.resize,
        fps=media.fps,
        max_frames=media.max_frames,
        sample_rate=media.sample_rate,
        max_seconds=media.max_seconds,
    )


def wanted_target(modality: str, extent: Extent, resize: str) -> Wanted:
    """As a sample of the rollout's size would be: its frames at its rate, sound of its length."""
    size = (extent.height, extent.width) if resize != "none" and modality != "audio" else (0, 0)
    return Wanted(
        height=size[0],
        width=size[1],
        resize=resize if resize != "none" else "pad",
        fps=extent.frame_rate if modality == "video" else 0.0,
        frames=extent.num_frames if modality == "video" else 0,
        max_seconds=extent.seconds if modality == "audio" else 0.0,
    )
