"""Files and bytes to media: pictures (Pillow), video and sound (PyAV), exactly as much of them as is asked for.

A medium that cannot be decoded is a `DataError` that begins with `what`, the caller's words for where it came from.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact, Modality
from omni_portable.data.frames import choose_frames
from omni_portable.data.resize import resize_picture
from omni_portable.data.wanted import AS_IT_IS, Wanted

if TYPE_CHECKING:
    import av
    import torch

Content = Path | bytes
"""A file, or what would be in one."""
MAX_DECODED_BYTES = 1 << 30
"""Largest medium in memory; more of it is refused, not cut."""
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)
"""What Pillow raises on damaged files."""
REPLACE = "replace the medium, or remove the row"


def decode(content: Content, name: str, modality: Modality, what: str, wanted: Wanted = AS_IT_IS) -> MediaArtifact:
    """A medium as a labelled artifact.

    Args:
        name: of the artifact.
        what: where the content came from, for messages.

    Raises:
        DataError: it cannot be decoded, is too short or too large, or has no frame rate or sample rate.
    """
    if modality == "image":
        return decode_image(content, name, what, wanted)
    if modality == "video":
        return decode_video(content, name, what, wanted)
    if modality == "audio":
        return decode_audio(content, name, what, wanted)
    raise DataError(f"{what}: a medium of modality '{modality}' cannot be read", choices=("image", "video", "audio"))


def decode_image(content: Content, name: str, what: str, wanted: Wanted = AS_IT_IS) -> MediaArtifact:
    """uint8 (3, H, W) RGB, turned upright as its EXIF data say; transparency is dropped."""
    import torch

    try:
        with Image.open(_stream(content)) as picture:
            pixels = _pixels(ImageOps.exif_transpose(picture).convert("RGB"), wanted)
    except UNREADABLE as error:
        raise DataError(f"{what}: no picture that can be decoded: {error}", remedy=REPLACE) from error
    return MediaArtifact(name, "image", torch.from_numpy(pixels), "CHW")


def decode_video(content: Content, name: str, what: str, wanted: Wanted = AS_IT_IS) -> MediaArtifact:
    """uint8 (T, 3, H, W) RGB with its frame rate; only the chosen frames are kept while decoding."""
    import torch

    with _opened(content, what) as container:
        if not container.streams.video:
            raise DataError(f"{what}: it holds no pictures, so it is no video")
        stream = container.streams.video[0]
        times = sorted(float(p.pts * p.time_base) for p in container.demux(stream) if p.size and p.pts is not None)
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        if not times or rate <= 0:
            raise DataError(f"{what}: a video without {'a frame rate' if times else 'frames'}")
        if len(times) < stream.frames:
            raise DataError(f"{what}: {stream.frames} frames are announced, but only {len(times)} are there")
        chosen, fps = choose_frames(times, rate, wanted, what)
        _check_size(len(chosen) * 3 * (wanted.height or stream.height) * (wanted.width or stream.width), what)
        container.seek(0)
        frames = _collect(container, stream, set(chosen), wanted)
    if any(index not in frames for index in chosen):
        raise DataError(f"{what}: {len(times)} frames are announced, but only {len(frames)} can be decoded")
    stacked = torch.from_numpy(np.stack([frames[index] for index in chosen]))
    return MediaArtifact(name, "video", stacked, "TCHW", fps=fps)


def decode_audio(content: Content, name: str, what: str, wanted: Wanted = AS_IT_IS) -> MediaArtifact:
    """float32 (channels, samples) with its sample rate; the sound track where it is a video."""
    import av

    with _opened(content, what) as container:
        if not container.streams.audio:
            raise DataError(f"{what}: it holds no sound")
        stream = container.streams.audio[0]
        if not stream.rate:
            raise DataError(f"{what}: sound without a sample rate")
        rate = wanted.sample_rate or stream.rate
        longest = round(wanted.max_seconds * rate) if wanted.max_seconds else 0
        resampler = av.AudioResampler(format="fltp", layout=stream.layout.name, rate=rate)
        parts: list[np.ndarray[Any, Any]] = []
        length = 0
        for frame in (*_sound(container, stream), None):
            for piece in resampler.resample(frame):
                parts.append(piece.to_ndarray())
                length += piece.samples
            _check_size(length * 4 * max(1, stream.channels), what)
            if longest and length >= longest:
                break
    if not length:
        raise DataError(f"{what}: sound without a single sample")
    return audio_artifact(np.concatenate(parts, axis=1)[:, : longest or None], rate, name, what)


def audio_artifact(samples: np.ndarray[Any, Any] | torch.Tensor, rate: int, name: str, what: str) -> MediaArtifact:
    """Sound as an artifact, from (channels, samples) or (samples,) floats.

    Raises:
        DataError: another shape, values that are not finite, or no sample rate.
    """
    import torch

    data = torch.as_tensor(samples).to(torch.float32)
    data = data[None] if data.ndim == 1 else data
    if data.ndim != 2 or 0 in data.shape or not bool(torch.isfinite(data).all()):
        raise DataError(f"{what}: sound of shape {tuple(data.shape)} that is empty or not finite")
    if not isinstance(rate, int) or isinstance(rate, bool) or rate <= 0:
        raise DataError(f"{what}: sound without a sample rate", remedy="give 'sampling_rate' in Hz beside the samples")
    return MediaArtifact(name, "audio", data.contiguous(), "CT", sample_rate=rate)


def _sound(container: av.container.InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    """Frames of a sound track one by one."""
    yield from container.decode(stream)


def _collect(
    container: av.container.InputContainer, stream: av.VideoStream, chosen: set[int], wanted: Wanted
) -> dict[int, np.ndarray[Any, Any]]:
    """Position -> (3, H, W) of the chosen frames."""
    kept: dict[int, np.ndarray[Any, Any]] = {}
    last = max(chosen)
    for index, frame in enumerate(container.decode(stream)):
        if index in chosen:
            kept[index] = _pixels(frame.to_image(), wanted)
        if index >= last:
            break
    return kept


def _pixels(picture: Image.Image, wanted: Wanted) -> np.ndarray[Any, Any]:
    """uint8 (3, H, W), contiguous."""
    if wanted.height and wanted.width:
        picture = resize_picture(picture, wanted.height, wanted.width, wanted.resize)
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def _stream(content: Content) -> io.BytesIO | Path:
    return content if isinstance(content, Path) else io.BytesIO(content)


def _check_size(count: int, what: str) -> None:
    if count > MAX_DECODED_BYTES:
        raise DataError(
            f"{what}: decoded it takes more than {MAX_DECODED_BYTES >> 20} MiB",
            remedy="limit it in data.media: max_frames, fps, height and width of a video; max_seconds of sound",
        )


@contextmanager
def _opened(content: Content, what: str) -> Iterator[av.container.InputContainer]:
    """An open container; what FFmpeg cannot make sense of, now or while decoding, becomes a `DataError`."""
    import av

    try:
        with av.open(content if isinstance(content, Path) else io.BytesIO(content), mode="r") as container:
            yield container
    except (av.FFmpegError, OSError, EOFError) as error:
        raise DataError(f"{what}: no video or sound that can be decoded: {error}", remedy=REPLACE) from error
