"""Small media for tests: artifacts, and files of them."""

from __future__ import annotations

import io
import math
from pathlib import Path

import torch
from PIL import Image

from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.export import write_audio, write_video


def picture(seed: int = 0, height: int = 8, width: int = 12) -> MediaArtifact:
    """Random pixels."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)
    return MediaArtifact("image", "image", pixels, "CHW")


def png(seed: int = 0, height: int = 8, width: int = 12) -> bytes:
    """A PNG file of :func:`picture`."""
    data = picture(seed, height, width).data
    assert isinstance(data, torch.Tensor)
    buffer = io.BytesIO()
    Image.fromarray(data.permute(1, 2, 0).numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def fading(frames: int = 10, fps: float = 10.0, height: int = 16, width: int = 16, step: int = 20) -> MediaArtifact:
    """A grey video that grows brighter by `step` per frame."""
    pixels = torch.stack([torch.full((3, height, width), index * step, dtype=torch.uint8) for index in range(frames)])
    return MediaArtifact("video", "video", pixels, "TCHW", fps=fps)


def tone(
    seconds: float = 1.0, rate: int = 16000, channels: int = 1, size: float = 0.5, hertz: float = 440.0
) -> MediaArtifact:
    """A sine."""
    time = torch.arange(round(seconds * rate)) / rate
    wave = size * torch.sin(2 * math.pi * hertz * time)
    return MediaArtifact("audio", "audio", wave.repeat(channels, 1), "CT", sample_rate=rate)


def wav(folder: Path, name: str = "tone.wav", **settings: float) -> Path:
    """A WAV file of :func:`tone`."""
    write_audio(tone(**settings), folder / name)  # type: ignore[arg-type]
    return folder / name


def mp4(folder: Path, name: str = "clip.mp4", sound: bool = True, **settings: float) -> Path:
    """An MP4 file of :func:`fading`, with a tone of its length."""
    video = fading(**settings)  # type: ignore[arg-type]
    assert isinstance(video.data, torch.Tensor)
    assert video.fps
    write_video(video, folder / name, tone(len(video.data) / video.fps) if sound else None)
    return folder / name
