"""Flat latents of several streams, streams on one clock, guidance on clean samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.contracts.errors import ArtifactError, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Extent
from omni_portable.models.diffusers_folder import check_frame_count
from omni_portable.models.flow_shift import ShiftedStream
from omni_portable.models.guidance import linear_guidance
from omni_portable.models.guidance_x0 import clean_space_guidance
from omni_portable.models.streams import bounds, elements, join, split
from omni_portable.models.video import (
    audio_artifact,
    audio_samples,
    fitted_samples,
    video_artifact,
    video_pixels,
)

SHAPES = {"video": (3, 2), "audio": (4,)}
levels = st.floats(min_value=0.02, max_value=1.0)


def test_streams_are_joined_and_split():
    parts = {"video": torch.arange(12.0).view(2, 3, 2), "audio": -torch.arange(8.0).view(2, 4)}
    vector = join(parts, SHAPES)
    assert (elements(SHAPES), bounds(SHAPES)) == (10, {"video": (0, 6), "audio": (6, 10)})
    assert vector.shape == (2, 10)
    assert all(torch.equal(part, parts[name]) for name, part in split(vector, SHAPES).items())
    with pytest.raises(ModelError, match="stream 'audio' are missing"):
        join({"video": parts["video"]}, SHAPES)
    with pytest.raises(ModelError, match="do not hold the 10 elements"):
        split(vector[:, 1:], SHAPES)


@given(sigma=levels, share=st.floats(min_value=0.0, max_value=0.99), ratio=st.floats(0.25, 8.0))
def test_a_step_on_the_shared_clock_is_the_stream_s_own_step(sigma, share, ratio):
    """Euler from sigma to share * sigma on kept latents, and the stream's own Euler step between its own levels."""
    stream, generator = ShiftedStream(ratio), torch.Generator().manual_seed(0)
    now, then = torch.tensor([sigma]).double(), torch.tensor([sigma * share]).double()
    kept = torch.randn(1, 5, generator=generator).double()
    predicted = torch.randn(1, 5, generator=generator).double()
    seen = stream.to_model(kept, now)
    after = kept + stream.velocity(seen, predicted, now) * (then - now)
    own = seen + predicted * (stream.level(then) - stream.level(now))
    torch.testing.assert_close(stream.to_model(after, then), own, atol=1e-9, rtol=1e-9)


@given(sigma=levels, ratio=st.floats(0.25, 8.0))
def test_kept_latents_are_noised_like_any_others(sigma, ratio):
    """(1 - s) k x0 + s e, as training noises them, is the stream at its own level."""
    stream, generator = ShiftedStream(ratio), torch.Generator().manual_seed(0)
    clean, noise = (torch.randn(1, 5, generator=generator).double() for _ in range(2))
    now = torch.tensor([sigma]).double()
    seen = stream.to_model((1 - now) * ratio * clean + now * noise, now)
    level = stream.level(now)
    torch.testing.assert_close(seen, (1 - level) * clean + level * noise, atol=1e-9, rtol=1e-9)
    velocity = stream.velocity(seen, noise - clean, now)
    torch.testing.assert_close(velocity, noise - ratio * clean, atol=1e-9, rtol=1e-9)


def test_levels_belong_to_equal_steps():
    even = torch.linspace(0.1, 1.0, 10).double()
    video, audio = (a * even / (1 + (a - 1) * even) for a in (12.0, 3.0))
    torch.testing.assert_close(ShiftedStream(4.0).level(video), audio)


@given(sigma=levels, scale=st.floats(1.0, 8.0))
def test_guidance_on_clean_samples_is_linear_without_rescaling(sigma, scale):
    generator = torch.Generator().manual_seed(1)
    sample, negative, positive = (torch.randn(2, 3, 4, generator=generator).double() for _ in range(3))
    level = torch.full((2,), sigma).double()
    found = clean_space_guidance(sample, level, positive, [(scale - 1.0, negative)])
    torch.testing.assert_close(found, linear_guidance(negative, positive, scale), atol=1e-9, rtol=1e-9)


def test_rescaled_guidance_keeps_the_spread():
    generator = torch.Generator().manual_seed(1)
    sample, negative, positive = (torch.randn(2, 30, generator=generator) for _ in range(3))
    level = torch.full((2,), 0.5)
    guided = sample - 0.5 * clean_space_guidance(sample, level, positive, [(5.0, negative)], rescale=1.0)
    torch.testing.assert_close(guided.std(dim=1), (sample - 0.5 * positive).std(dim=1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("frames", "choices"), [(121, ("107", "124")), (5, ("22",)), (23, ("22", "39")), (1, ("22",))])
def test_frame_counts_name_their_neighbours(tmp_path, frames, choices):
    check_frame_count(tmp_path, 17, 5, 22, 124)
    with pytest.raises(ConfigError, match=r"17 n \+ 5 frames") as caught:
        check_frame_count(tmp_path, 17, 5, 22, frames)
    assert caught.value.choices == choices


def test_media_go_in_and_out():
    extent = Extent(2, 4, 3, 6.0)
    pixels = torch.rand(3, 3, 2, 4, generator=torch.Generator().manual_seed(0))
    video = video_artifact(pixels, 6.0)
    assert (video.data.dtype, tuple(video.data.shape), video.fps) == (torch.uint8, (3, 3, 2, 4), 6.0)
    back = video_pixels({"video": video}, "video", extent)
    torch.testing.assert_close(back * 0.5 + 0.5, pixels, atol=0.5 / 255 + 1e-6, rtol=0)
    sound = audio_artifact(3 * torch.randn(2, 50), 100)
    assert sound.data.abs().max() <= 1
    assert torch.equal(audio_samples({"audio": sound}, "audio", 100, 2, extent), sound.data)
    assert torch.equal(fitted_samples(sound.data, 60)[:, 50:], torch.zeros(2, 10))
    assert torch.equal(fitted_samples(sound.data, 40), sound.data[:, :40])
    silent = MediaArtifact("audio", "audio", torch.zeros(2, 70), "CT", sample_rate=100)
    with pytest.raises(ArtifactError, match="lasts 0.700 s, the video beside it 0.500 s"):
        audio_samples({"audio": silent}, "audio", 100, 2, extent)
