"""Videos and sound between media artifacts and models: sizes that are asked for, and tensors in the libraries' layouts.

What is missing, of another kind or of another size is named, never adjusted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact, require_artifact
from omni_portable.contracts.rollout import Extent

WHO = "the model"
SPARE_SECONDS = 0.1
"""How much longer than its video a sound may be: a codec's last frame."""


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
