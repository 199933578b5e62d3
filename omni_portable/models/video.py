"""Videos and sound between media artifacts and models: sizes that are asked for, and tensors in the libraries' layouts.

What is missing, of another kind or of another size is named, never adjusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from omni_portable.contracts.errors import ArtifactError, ConfigError
from omni_portable.contracts.media import MediaArtifact, require_artifact
from omni_portable.contracts.rollout import Extent

WHO = "the model"
SPARE_SECONDS = 0.1
"""How much longer than its video a sound may be: a codec's last frame."""


def check_video_size(path: Path, unit: int, extent: Extent) -> None:
    """`ConfigError` for a side that is no multiple of `unit` pixels, or an extent without a frame rate."""
    for key, pixels in (("height", extent.height), ("width", extent.width)):
        if pixels < unit or pixels % unit:
            raise ConfigError(
                f"rollout.{key} is {pixels}; {path} draws multiples of {unit} pixels",
                remedy=f"set rollout.{key} to {max(pixels - pixels % unit, unit)}",
            )
    if extent.frame_rate <= 0:
        raise ConfigError(
            f"rollout.frame_rate is {extent.frame_rate:g}; a video needs frames per second",
            remedy="set rollout.frame_rate, for example to 24",
        )


def check_frame_count(path: Path, step: int, offset: int, least: int, frames: int) -> None:
    """`ConfigError` unless `frames` is `step` n + `offset` and at least `least`."""
    if frames >= least and frames % step == offset % step:
        return
    below = frames - (frames - offset) % step
    choices = [count for count in (below, below + step) if count >= least] or [least]
    raise ConfigError(
        f"rollout.num_frames is {frames}; {path} draws videos of {step} n + {offset} frames, at least {least}",
        remedy=f"set rollout.num_frames to {choices[-1]}",
        choices=[str(count) for count in choices],
    )


def video_pixels(media: Mapping[str, MediaArtifact], name: str, extent: Extent) -> torch.Tensor:
    """(3, T, H, W) fp32 in [-1, 1] of the video called `name`.

    Raises:
        ArtifactError: it is missing, no video, or not of the extent's size.
    """
    data = require_artifact(media, name, "video", WHO).data
    assert isinstance(data, torch.Tensor)
    found, wanted = (data.shape[0], *data.shape[2:]), (extent.num_frames, extent.height, extent.width)
    if found != wanted:
        raise ArtifactError(
            f"the video '{name}' has {' x '.join(map(str, found))} frames and pixels, expected "
            f"{' x '.join(map(str, wanted))}",
            remedy="cut and resize it when the dataset is made, or set rollout.num_frames, height and width",
        )
    return data.float().permute(1, 0, 2, 3) / 127.5 - 1.0


def audio_samples(
    media: Mapping[str, MediaArtifact], name: str, sample_rate: int, channels: int, extent: Extent
) -> torch.Tensor:
    """(channels, samples) fp32 of the sound called `name`; a single channel stands for all of them.

    Raises:
        ArtifactError: it is missing, no audio, of another sample rate or number of channels, or longer than the extent.
    """
    artifact = require_artifact(media, name, "audio", WHO)
    data = artifact.data
    assert isinstance(data, torch.Tensor)
    if artifact.sample_rate != sample_rate or data.shape[0] not in (1, channels):
        raise ArtifactError(
            f"the sound '{name}' has {data.shape[0]} channels at {artifact.sample_rate} Hz, expected {channels} at "
            f"{sample_rate} Hz",
            remedy="convert it when the dataset is made",
        )
    if data.shape[1] > (extent.seconds + SPARE_SECONDS) * sample_rate:
        raise ArtifactError(
            f"the sound '{name}' lasts {data.shape[1] / sample_rate:.3f} s, the video beside it {extent.seconds:.3f} s",
            remedy="cut it to the length of the video when the dataset is made",
        )
    return data.float().expand(channels, -1)


def fitted_samples(samples: torch.Tensor, count: int) -> torch.Tensor:
    """(channels, samples) -> (channels, count): the end cut off, or silence after it."""
    kept = samples[:, :count]
    return torch.nn.functional.pad(kept, (0, count - kept.shape[1]))


def video_artifact(pixels: torch.Tensor, fps: float) -> MediaArtifact:
    """Artifact 'video' of (3, T, H, W) in [0, 1]: uint8 (T, 3, H, W) on the CPU, round(255 clamp(x, 0, 1))."""
    frames = pixels.permute(1, 0, 2, 3).clamp(0, 1).float().mul(255).round().to("cpu", torch.uint8)
    return MediaArtifact("video", "video", frames, "TCHW", fps=fps)


def audio_artifact(waveform: torch.Tensor, sample_rate: int) -> MediaArtifact:
    """Artifact 'audio' of (channels, samples): fp32 on the CPU, clamped to [-1, 1]."""
    return MediaArtifact("audio", "audio", waveform.float().clamp(-1, 1).to("cpu"), "CT", sample_rate=sample_rate)
