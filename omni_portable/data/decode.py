"""Files and bytes to media: pictures (Pillow), video and sound (PyAV), exactly as much of them as is asked for.

A medium that cannot be decoded is a `DataError` that begins with `what`, the caller's words for where it came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact, Modality
from omni_portable.data.containers import decodable, opened
from omni_portable.data.frames import choose_frames
from omni_portable.data.limits import check_size
from omni_portable.data.pictures import read_picture
from omni_portable.data.resize import resize_picture
from omni_portable.data.sound import audio_artifact, fitted, read_track
from omni_portable.data.wanted import AS_IT_IS, Wanted

if TYPE_CHECKING:
    import av

Content = Path | bytes
"""A file, or what would be in one."""


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
    """uint8 (3, H, W) RGB, as :func:`omni_portable.data.pictures.read_picture` reads it."""
    import torch

    check_size(3 * wanted.height * wanted.width, what)
    pixels = _pixels(read_picture(content, what), wanted)
    return MediaArtifact(name, "image", torch.from_numpy(pixels), "CHW")


def decode_video(content: Content, name: str, what: str, wanted: Wanted = AS_IT_IS) -> MediaArtifact:
    """uint8 (T, 3, H, W) RGB with its frame rate; only the chosen frames are kept while decoding."""
    import torch

    with opened(content, what) as container:
        if not container.streams.video:
            raise DataError(f"{what}: it holds no pictures, so it is no video")
        stream = container.streams.video[0]
        decodable(stream, what)
        times = sorted(float(p.pts * p.time_base) for p in container.demux(stream) if p.size and p.pts is not None)
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        if not times or rate <= 0:
            raise DataError(f"{what}: a video without {'a frame rate' if times else 'frames'}")
        if len(times) < stream.frames:
            raise DataError(f"{what}: {stream.frames} frames are announced, but only {len(times)} are there")
        chosen, fps = choose_frames(times, rate, wanted, what)
        check_size(len(chosen) * 3 * (wanted.height or stream.height) * (wanted.width or stream.width), what)
        container.seek(0)
        frames = _collect(container, stream, set(chosen), wanted, what)
    if any(index not in frames for index in chosen):
        raise DataError(f"{what}: {len(times)} frames are announced, but only {len(frames)} can be decoded")
    sizes = sorted({frame.shape[1:] for frame in frames.values()})
    if len(sizes) > 1:
        raise DataError(
            f"{what}: its frames have different sizes: {sizes[0][1]}x{sizes[0][0]} and {sizes[1][1]}x{sizes[1][0]}",
            remedy="set height and width of the medium in data.media, or encode it anew",
        )
    stacked = torch.from_numpy(np.stack([frames[index] for index in chosen]))
    return MediaArtifact(name, "video", stacked, "TCHW", fps=fps)


def decode_audio(content: Content, name: str, what: str, wanted: Wanted = AS_IT_IS) -> MediaArtifact:
    """float32 (channels, samples) with its sample rate; the sound track where it is a video."""
    with opened(content, what) as container:
        samples, rate = read_track(container, what, wanted.max_seconds)
    return audio_artifact(*fitted(samples, rate, wanted, what), name, what)


def _collect(
    container: av.container.InputContainer, stream: av.VideoStream, chosen: set[int], wanted: Wanted, what: str
) -> dict[int, np.ndarray[Any, Any]]:
    """Position -> (3, H, W) of the chosen frames."""
    kept: dict[int, np.ndarray[Any, Any]] = {}
    last, size = max(chosen), 0
    for index, frame in enumerate(container.decode(stream)):
        if index in chosen:
            check_size(3 * frame.height * frame.width, what)  # frames may be larger than the stream announces
            kept[index] = _pixels(frame.to_image(), wanted)
            size += kept[index].nbytes
            check_size(size, what)
        if index >= last:
            break
    return kept


def _pixels(picture: Image.Image, wanted: Wanted) -> np.ndarray[Any, Any]:
    """uint8 (3, H, W), contiguous."""
    if wanted.height and wanted.width:
        picture = resize_picture(picture, wanted.height, wanted.width, wanted.resize)
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))
