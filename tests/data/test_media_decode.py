"""Media as they come out of files and bytes: shapes, rates, parts of them, and errors that say where they come from."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from omni_portable.contracts.errors import DataError
from omni_portable.data import limits
from omni_portable.data.decode import decode
from omni_portable.data.frames import choose_frames
from omni_portable.data.sound import audio_artifact
from omni_portable.data.wanted import Wanted
from tests.support.media import mp4, picture, png, tone, wav


def levels(video) -> list[int]:
    return [round(frame.float().mean().item()) for frame in video.data]


def test_pictures_come_back_bit_for_bit_from_files_and_bytes(tmp_path):
    (tmp_path / "a.png").write_bytes(png(3))
    for content in (tmp_path / "a.png", png(3)):
        found = decode(content, "photo", "image", "x")
        assert (found.name, found.modality, found.layout) == ("photo", "image", "CHW")
        assert torch.equal(found.data, picture(3).data)


def test_pictures_are_turned_upright_and_become_rgb():
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3), "L")
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees to show it
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    assert decode(buffer.getvalue(), "p", "image", "x").data[0].tolist() == [[3, 0], [4, 1], [5, 2]]


@pytest.mark.parametrize("how", ["pad", "crop", "stretch"])
def test_pictures_get_the_size_that_is_wanted(how):
    found = decode(png(0, 10, 40), "p", "image", "x", Wanted(height=16, width=16, resize=how)).data
    assert found.shape == (3, 16, 16)
    white = bool((found[:, :5] == 255).all()) and bool((found[:, -5:] == 255).all())
    assert white == (how == "pad"), "only 'pad' adds white above and below"
    same = decode(png(0, 10, 40), "p", "image", "x", Wanted(height=10, width=40, resize=how)).data
    assert torch.equal(same, picture(0, 10, 40).data), "a picture of the right size is left alone"


def test_videos_have_frames_in_order_and_their_rate(tmp_path):
    found = decode(mp4(tmp_path), "clip", "video", "x")
    assert found.data.shape == (10, 3, 16, 16)
    assert found.data.dtype == torch.uint8
    assert found.fps == 10.0
    assert levels(found) == pytest.approx([20 * i for i in range(10)], abs=2)


def test_frames_nearest_to_a_rate_exactly_so_many_or_evenly_spread(tmp_path):
    path = mp4(tmp_path)
    slow = decode(path, "v", "video", "x", Wanted(fps=5))
    assert (slow.fps, levels(slow)) == (5, pytest.approx([0, 40, 80, 120, 160], abs=2))
    first = decode(path, "v", "video", "x", Wanted(fps=5, frames=2, height=4, width=6, resize="stretch"))
    assert first.data.shape == (2, 3, 4, 6)
    spread = decode(path, "v", "video", "x", Wanted(max_frames=4))
    assert levels(spread) == pytest.approx([0, 60, 120, 180], abs=2)
    assert spread.fps == pytest.approx(10 / 3)
    twice = decode(path, "v", "video", "x", Wanted(fps=20, frames=4))
    assert levels(twice) == pytest.approx([0, 0, 20, 20], abs=2)


def test_a_video_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"row 3: the video has 10 frames at 10 per second, 17 are needed"):
        decode(mp4(tmp_path), "v", "video", "row 3", Wanted(frames=17))


def test_frames_of_a_video_with_an_unsteady_rate():
    times = [0.0, 0.1, 0.2, 0.7, 0.8]
    assert choose_frames(times, 10.0, Wanted(fps=5), "x") == ([0, 2, 2, 3], 5)  # ticks 0, 0.2, 0.4, 0.6
    assert choose_frames(times, 10.0, Wanted(max_frames=1), "x")[0] == [0]


def test_sound_keeps_its_channels_and_rate(tmp_path):
    found = decode(wav(tmp_path, channels=2), "s", "audio", "x")
    assert (found.data.shape, found.data.dtype, found.sample_rate) == ((2, 16000), torch.float32, 16000)
    assert (found.data - tone(channels=2).data).abs().max() < 1e-4


def test_sound_is_resampled_and_cut(tmp_path):
    found = decode(wav(tmp_path).read_bytes(), "s", "audio", "x", Wanted(sample_rate=8000, max_seconds=0.25))
    assert (found.data.shape, found.sample_rate) == ((1, 2000), 8000)
    assert (found.data - tone(0.25, 8000).data)[:, 100:-100].abs().max() < 0.02


def test_the_sound_of_a_video_is_sound(tmp_path):
    found = decode(mp4(tmp_path), "s", "audio", "x", Wanted(max_seconds=1.0))
    assert found.data.shape == (1, 16000)
    assert (found.data - tone().data)[:, 2000:-1000].abs().max() < 0.1, "AAC loses little, and nothing is shifted"


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
@pytest.mark.parametrize("content", [b"", b"nonsense" * 40, b"\x89PNG\r\n\x1a\n" + b"\0" * 30])
def test_what_cannot_be_decoded_is_named(modality, content):
    with pytest.raises(DataError, match="p.parquet row 7: field 'x'.*(can be decoded|holds no)"):
        decode(content, "x", modality, "p.parquet row 7: field 'x'")


def test_torn_and_missing_files_are_named(tmp_path):
    (tmp_path / "torn.mp4").write_bytes(mp4(tmp_path, sound=False, frames=30, step=5).read_bytes()[:-400])
    for path in (tmp_path / "torn.mp4", tmp_path / "missing.mp4"):
        with pytest.raises(DataError, match=f"row 1 .{path}"):
            decode(path, "v", "video", f"row 1 ({path})")


def test_another_modality_is_refused(tmp_path):
    with pytest.raises(DataError, match="it is no video"):
        decode(wav(tmp_path), "v", "video", "x")
    with pytest.raises(DataError, match="holds no sound"):
        decode(mp4(tmp_path, sound=False), "s", "audio", "x")
    with pytest.raises(DataError, match="'smell' cannot be read"):
        decode(b"x", "s", "smell", "x")  # type: ignore[arg-type]


def test_sound_in_numbers_needs_a_rate_and_finite_values():
    assert audio_artifact(np.zeros(8), 8000, "s", "x").data.shape == (1, 8)
    for rate in (None, 0, -1, 1.5, True):
        with pytest.raises(DataError, match="row 2: sound without a sample rate"):
            audio_artifact(np.zeros(8), rate, "s", "row 2")  # type: ignore[arg-type]
    for samples in (np.array([np.nan]), np.zeros((1, 2, 3)), np.zeros(0)):
        with pytest.raises(DataError, match="empty or not finite"):
            audio_artifact(samples, 8000, "s", "x")


def test_media_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", 3000)
    with pytest.raises(DataError, match="row 1: decoded it takes more than"):
        decode(mp4(tmp_path), "v", "video", "row 1")
    assert decode(mp4(tmp_path), "v", "video", "row 1", Wanted(max_frames=2)).data.shape[0] == 2
    with pytest.raises(DataError, match="decoded it takes more than"):
        decode(wav(tmp_path), "s", "audio", "row 1")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match="row 1: no picture that can be decoded"):
        decode(png(0, 8, 8), "p", "image", "row 1")
