"""Artifacts to files that people can open: PNG, MP4 (H.264 with AAC sound, through PyAV) and WAV (16 bits)."""

from __future__ import annotations

import wave
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.media import write_image

if TYPE_CHECKING:
    import av

SUFFIXES: Mapping[str, str] = {"image": ".png", "video": ".mp4", "audio": ".wav"}
"""Modality -> ending of its files; text and latents have none."""
CHANNELS = {1: "mono", 2: "stereo"}
AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
CRF = "18"
"""Quality of H.264: hardly to be told from the original."""


def write_audio(audio: MediaArtifact, path: Path) -> None:
    """Sound as 16-bit PCM; values beyond [-1, 1] are clipped.

    Raises:
        ArtifactError: not an audio artifact.
    """
    samples = _samples(audio)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[0])
        file.setsampwidth(2)
        file.setframerate(_rate(audio))
        file.writeframes(_pcm(samples).T.tobytes())


def write_video(video: MediaArtifact, path: Path, sound: MediaArtifact | None = None) -> None:
    """Frames as H.264 at their frame rate, with sound as AAC beside them.

    Frames with an odd side get one more row or column (a copy of the last), because H.264 has no other sizes here.

    Raises:
        ArtifactError: not a video and an audio artifact, or sound of more than two channels.
    """
    import av

    frames = _frames(video)
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(video.fps or 0).limit_denominator(100_000))
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        stream.options = {"crf": CRF, "preset": "veryfast"}
        track = None if sound is None else _audio_stream(container, sound)
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
        if sound is not None and track is not None:
            _mux_sound(container, track, sound)


def write_media(artifacts: Mapping[str, MediaArtifact], folder: Path, stem: str) -> dict[str, str]:
    """Every artifact of a sample that can be a file, as `folder/stem[-NAME].ENDING`.

    The name is part of the file's where a sample has several artifacts of one modality. Sound that comes with a single
    video is written into it as well.

    Returns:
        Name of the artifact -> name of its file.
    """
    kinds = [artifact.modality for artifact in artifacts.values()]
    sounds = [artifact for artifact in artifacts.values() if artifact.modality == "audio"]
    sound = sounds[0] if len(sounds) == 1 and kinds.count("video") == 1 else None
    written: dict[str, str] = {}
    for name, artifact in sorted(artifacts.items()):
        if artifact.modality not in SUFFIXES:
            continue
        label = f"-{name}" if kinds.count(artifact.modality) > 1 else ""
        file = f"{stem}{label}{SUFFIXES[artifact.modality]}"
        if artifact.modality == "image":
            write_image(artifact, folder / file)
        elif artifact.modality == "video":
            write_video(artifact, folder / file, sound)
        else:
            write_audio(artifact, folder / file)
        written[name] = file
    return written


def _audio_stream(container: av.container.OutputContainer, sound: MediaArtifact) -> av.AudioStream:
    channels = _samples(sound).shape[0]
    if channels not in CHANNELS:
        raise ArtifactError(f"the audio artifact '{sound.name}' has {channels} channels; an MP4 file takes 1 or 2")
    rate = _rate(sound)
    kept = rate if rate in AAC_RATES else min(AAC_RATES, key=lambda known: (known < rate, abs(known - rate)))
    return container.add_stream("aac", rate=kept, layout=CHANNELS[channels])


def _mux_sound(container: av.container.OutputContainer, track: av.AudioStream, sound: MediaArtifact) -> None:
    import av

    samples = np.ascontiguousarray(_samples(sound).clip(-1.0, 1.0))
    layout = CHANNELS[samples.shape[0]]
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
    frame.sample_rate = _rate(sound)
    frame.pts, frame.time_base = 0, Fraction(1, _rate(sound))
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=track.rate)
    for part in (frame, None):
        for piece in resampler.resample(part):
            container.mux(track.encode(piece))
    container.mux(track.encode())


def _frames(video: MediaArtifact) -> np.ndarray[Any, Any]:
    """uint8 (T, H, W, 3) with even sides."""
    if video.modality != "video":
        raise ArtifactError(f"artifact '{video.name}' is {video.modality}, not a video")
    data: Any = video.data
    if data.shape[1] != 3 or 0 in data.shape:
        raise ArtifactError(f"the video '{video.name}' must be (T, 3, H, W), got {tuple(data.shape)}")
    pixels = np.ascontiguousarray(data.detach().cpu().numpy().transpose(0, 2, 3, 1))
    return np.pad(pixels, ((0, 0), (0, pixels.shape[1] % 2), (0, pixels.shape[2] % 2), (0, 0)), mode="edge")


def _samples(audio: MediaArtifact) -> np.ndarray[Any, Any]:
    """float32 (channels, samples)."""
    if audio.modality != "audio":
        raise ArtifactError(f"artifact '{audio.name}' is {audio.modality}, not audio")
    data: Any = audio.data
    return np.asarray(data.detach().cpu().float().numpy())


def _rate(audio: MediaArtifact) -> int:
    assert audio.sample_rate is not None  # MediaArtifact refuses audio without one
    return audio.sample_rate


def _pcm(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray((samples.clip(-1.0, 1.0) * 32767.0).round(), dtype="<i2")
