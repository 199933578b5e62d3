"""Sound: the track of a file as numbers, brought to a rate and a length, labelled as an artifact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_portable.config.media import MAX_SAMPLE_RATE
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.containers import decodable
from omni_portable.data.limits import MAX_CHANNELS, check_size
from omni_portable.data.wanted import Wanted

if TYPE_CHECKING:
    import av
    import torch

Numbers = np.ndarray[Any, Any]
CHUNK = 1 << 16
"""Samples per channel that are resampled at once."""


def read_track(container: av.container.InputContainer, what: str, max_seconds: float) -> tuple[Numbers, int]:
    """The first sound track: float32 (channels, samples), and its rate in Hz.

    Args:
        max_seconds: reading stops a little later than that; 0 reads all.

    Raises:
        DataError: no sound, no rate, too much of it, or channels or rate that change midway.
    """
    if not container.streams.audio:
        raise DataError(f"{what}: it holds no sound")
    stream = container.streams.audio[0]
    decodable(stream, what)
    check_rate(stream.rate, what)
    parts: list[Numbers] = []
    length, channels, rate = 0, 0, 0
    for samples, its_rate in _pieces(container, stream, what):
        if parts and (len(samples), its_rate) != (channels, rate):
            raise DataError(
                f"{what}: the sound changes midway, from {channels} channels at {rate} Hz to {len(samples)} at "
                f"{its_rate} Hz",
                remedy="encode it anew, with the same channels and rate all along",
            )
        channels, rate = len(samples), check_rate(its_rate, what)
        parts.append(samples)
        length += samples.shape[1]
        check_size(length * 4 * channels, what)
        if max_seconds and length > (max_seconds + 1) * rate:
            break
    if not length:
        raise DataError(f"{what}: sound without a single sample")
    return np.concatenate(parts, axis=1), rate


def fitted(samples: Numbers, rate: int, wanted: Wanted, what: str) -> tuple[Numbers, int]:
    """Sound at the rate and of the length that is wanted: (channels, samples), and its rate in Hz.

    Raises:
        DataError: the result would be too large, or FFmpeg cannot go from one rate to the other.
    """
    goal = wanted.sample_rate or rate
    if wanted.max_seconds:  # one second more than is kept, so that the cut is not heard in what comes before
        samples = samples[:, : math.ceil(min((wanted.max_seconds + 1) * rate, samples.shape[1]))]
    check_size(len(samples) * math.ceil(samples.shape[1] * goal / rate) * 4, what)
    resampled = resample(samples, rate, goal, what)
    if wanted.max_seconds:
        resampled = resampled[:, : max(1, round(min(wanted.max_seconds * goal, resampled.shape[1])))]
    return resampled, goal


def resample(samples: Numbers, rate: int, goal: int, what: str) -> Numbers:
    """float32 (channels, samples x goal / rate, rounded, at least 1), channel by channel.

    Silence follows the end, as long as FFmpeg's filter wants to see more, so that short sound comes out whole too.
    """
    if goal == rate:
        return samples
    length = max(1, round(samples.shape[1] * goal / rate))
    return np.stack([_resample_channel(channel, rate, goal, length, what) for channel in samples])


def check_rate(rate: Any, what: str) -> int:
    """
    Raises:
        DataError: no whole number of Hz from 1 to :data:`MAX_SAMPLE_RATE`.
    """
    if not isinstance(rate, int) or isinstance(rate, bool) or rate <= 0:
        raise DataError(f"{what}: sound without a sample rate", remedy="give 'sampling_rate' in Hz beside the samples")
    if rate > MAX_SAMPLE_RATE:
        raise DataError(f"{what}: a sample rate of {rate} Hz is beyond the limit of {MAX_SAMPLE_RATE} Hz")
    return rate


def audio_artifact(samples: Numbers | torch.Tensor, rate: int, name: str, what: str) -> MediaArtifact:
    """Sound as an artifact, from (channels, samples) or (samples,) floats.

    Raises:
        DataError: another shape, values that are not finite, no sample rate, or more channels than samples or than
            :data:`MAX_CHANNELS`.
    """
    import torch

    data = torch.as_tensor(samples).to(torch.float32)
    data = data[None] if data.ndim == 1 else data
    if data.ndim != 2 or 0 in data.shape or not bool(torch.isfinite(data).all()):
        raise DataError(f"{what}: sound of shape {tuple(data.shape)} that is empty or not finite")
    if data.shape[0] > MAX_CHANNELS:
        raise DataError(
            f"{what}: sound of shape {tuple(data.shape)} has {data.shape[0]} channels, the limit is {MAX_CHANNELS}",
            remedy="give it as (channels, samples), not as (samples, channels)",
        )
    return MediaArtifact(name, "audio", data.contiguous(), "CT", sample_rate=check_rate(rate, what))


def _pieces(container: av.container.InputContainer, stream: av.AudioStream, what: str) -> Iterator[tuple[Numbers, int]]:
    """float32 (channels, samples) and rate of every frame."""
    import av

    formats: dict[tuple[str, str, int], av.AudioResampler] = {}
    for frame in container.decode(stream):
        channels = frame.layout.nb_channels
        if channels > MAX_CHANNELS:
            raise DataError(f"{what}: sound of {channels} channels, the limit is {MAX_CHANNELS}")
        key = frame.format.name, frame.layout.name, check_rate(frame.sample_rate, what)
        if key not in formats:  # to packed floats: PyAV reads beyond the end of frames with eight planes or more
            formats[key] = av.AudioResampler(format="flt", layout=frame.layout, rate=frame.sample_rate)
        for piece in formats[key].resample(frame):
            yield piece.to_ndarray().reshape(-1, channels).T, frame.sample_rate


def _resample_channel(channel: Numbers, rate: int, goal: int, length: int, what: str) -> Numbers:
    import av

    converter = av.AudioResampler(format="flt", layout="mono", rate=goal)
    whole = (channel[start : start + CHUNK] for start in range(0, len(channel), CHUNK))
    silence = np.zeros(CHUNK, np.float32)
    parts: list[Numbers] = []
    made = 0
    for chunk in chain(whole, repeat(silence, 2 + 64 * math.ceil(rate / goal) // CHUNK)):
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(chunk, np.float32)[None], format="flt", layout="mono")
        frame.sample_rate = rate
        try:
            pieces = [piece.to_ndarray()[0] for piece in converter.resample(frame)]
        except (av.FFmpegError, ValueError, MemoryError) as error:
            raise DataError(f"{what}: its sound cannot be brought from {rate} to {goal} Hz: {error}") from error
        parts += pieces
        made += sum(map(len, pieces))
        if made >= length:
            break
    if made < length:
        raise DataError(f"{what}: its sound cannot be brought from {rate} to {goal} Hz: {made} of {length} samples")
    return np.concatenate(parts)[:length]
