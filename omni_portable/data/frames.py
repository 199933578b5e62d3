"""Which frames of a video are taken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from omni_portable.contracts.errors import DataError
from omni_portable.data.limits import MAX_FRAMES
from omni_portable.data.wanted import Wanted


def choose_frames(times: Sequence[float], rate: float, wanted: Wanted, what: str) -> tuple[list[int], float]:
    """Positions of the frames to take, in order, and how many of them make a second.

    Args:
        times: seconds of every frame, ascending.
        rate: frames per second of the file.
        wanted: `fps` takes the frames nearest to its ticks (one twice where the file has fewer), `frames` then takes
            exactly so many from the beginning, `max_frames` spreads so many over what is left.

    Raises:
        DataError: fewer than `frames`, or more than :data:`MAX_FRAMES`.
    """
    positions, fps = list(range(len(times))), rate
    if wanted.fps:
        positions, fps = _at_rate(times, rate, wanted.fps, what), wanted.fps
    if wanted.frames:
        if len(positions) < wanted.frames:
            raise DataError(
                f"{what}: the video has {len(positions)} frames at {fps:g} per second, {wanted.frames} are needed",
                remedy="use longer videos, or lower rollout.num_frames or rollout.frame_rate",
            )
        positions = positions[: wanted.frames]
    if wanted.max_frames and len(positions) > wanted.max_frames:
        step = (len(positions) - 1) / max(1, wanted.max_frames - 1)
        positions = [positions[round(index * step)] for index in range(wanted.max_frames)]
        fps /= step
    return positions, fps


def _at_rate(times: Sequence[float], rate: float, fps: float, what: str) -> list[int]:
    """The frame nearest to each tick of `fps` over the length of the video."""
    first = times[0]
    length = times[-1] - first + 1 / rate
    if length * fps > MAX_FRAMES:
        raise DataError(
            f"{what}: {length:g} seconds of video at {fps:g} frames per second are more than {MAX_FRAMES} frames",
            remedy="lower fps in data.media, or cut the video",
        )
    ticks = [first + index / fps for index in range(max(1, round(length * fps)))]
    return [_nearest(times, tick) for tick in ticks]


def _nearest(times: Sequence[float], tick: float) -> int:
    after = min(bisect_left(times, tick), len(times) - 1)
    before = max(0, after - 1)
    return before if tick - times[before] <= times[after] - tick else after
