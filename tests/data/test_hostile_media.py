"""Media as nobody should write them: read right where that is possible, a named error otherwise, never a crash."""

from __future__ import annotations

import io
import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from omni_portable.contracts.errors import DataError
from omni_portable.contracts.media import Modality
from omni_portable.data.decode import decode
from omni_portable.data.pictures import FORMATS
from omni_portable.data.sources import MediaRef, Samples
from omni_portable.data.wanted import Wanted
from tests.support.media import mp4, png, wav


def pcm(channels: int, rate: int, samples: int) -> bytes:
    """A WAV file whose channel number c holds (c + 1) / 1024 throughout."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.tile(32 * np.arange(1, channels + 1, dtype="<i2"), samples).tobytes())
    return buffer.getvalue()


def encoded(codec: str, container: str, layout: str, rate: int = 44100) -> bytes:
    """Half a second of silence."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        channels = av.AudioLayout(layout).nb_channels
        silence = av.AudioFrame.from_ndarray(np.zeros((1, rate // 2 * channels), np.float32), "flt", layout)
        silence.sample_rate, silence.pts = rate, 0
        to_codec = av.AudioResampler(stream.format.name, layout, rate, stream.frame_size or 1024)
        for part in (*to_codec.resample(silence), *to_codec.resample(None), None):
            file.mux(stream.encode(part))
    return buffer.getvalue()


def saved(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def assert_read_or_named(content: bytes, modality: Modality) -> None:
    """Nothing but a `DataError` that begins with the row may come of it."""
    problem = ""
    try:
        decode(content, "m", modality, "row 1", Wanted(height=4, width=4) if modality == "image" else Wanted())
    except DataError as error:
        problem = str(error)
    assert not problem or problem.startswith("row 1: ")
    assert "object at 0x" not in problem


@pytest.mark.parametrize("channels", [1, 3, 7, 8, 9, 24, 64])
@pytest.mark.parametrize("rate", [0, 16000])
def test_sound_of_any_number_of_channels(channels, rate):
    found = decode(pcm(channels, 8000, 400), "s", "audio", "x", Wanted(sample_rate=rate))
    assert found.data.shape == (channels, 800 if rate else 400)
    middle = found.data[:, found.data.shape[1] // 2]
    assert middle.tolist() == pytest.approx([(c + 1) / 1024 for c in range(channels)], rel=0.01), "each its own values"


@pytest.mark.parametrize(("codec", "container"), [("aac", "adts"), ("flac", "flac")])
def test_eight_channels_of_compressed_sound(codec, container):
    assert decode(encoded(codec, container, "7.1"), "s", "audio", "x").data.shape[0] == 8


def test_too_many_channels_are_refused():
    with pytest.raises(DataError, match="row 1: sound of 65 channels, the limit is 64"):
        decode(pcm(65, 8000, 10), "s", "audio", "row 1")


@pytest.mark.parametrize(
    ("samples", "rate", "goal", "expected"),
    [(10, 1000, 16000, 160), (1, 8000, 16000, 2), (5, 192000, 16000, 1), (100, 44100, 16000, 36), (100, 16000, 1, 1)],
)
def test_short_sound_comes_out_whole(samples, rate, goal, expected):
    found = decode(pcm(1, rate, samples), "s", "audio", "x", Wanted(sample_rate=goal))
    assert (found.data.shape, found.sample_rate) == ((1, expected), goal)


def test_the_shortest_cut_leaves_a_sample():
    assert decode(pcm(1, 8000, 100), "s", "audio", "x", Wanted(max_seconds=1e-9)).data.shape == (1, 1)


@pytest.mark.parametrize("second", [("stereo", 44100), ("mono", 22050)])
def test_sound_that_changes_midway_is_named(second):
    torn = encoded("aac", "adts", "mono") + encoded("aac", "adts", *second)
    with pytest.raises(DataError, match="row 1: the sound changes midway, from 1 channels at 44100 Hz to"):
        decode(torn, "s", "audio", "row 1")


def test_rates_that_no_sound_has():
    with pytest.raises(DataError, match="row 1: a sample rate of 1500000 Hz is beyond the limit"):
        decode(pcm(1, 1_500_000, 10), "s", "audio", "row 1")
    with pytest.raises(DataError, match="row 1: its sound cannot be brought from 1 to 16000 Hz"):
        decode(pcm(1, 1, 10), "s", "audio", "row 1", Wanted(sample_rate=16000))


@pytest.mark.parametrize(
    ("values", "rate", "message"),
    [
        (((1.0, 2.0), (3.0,)), 8000, "'array' holds channels of different lengths"),
        (((1.0,),) * 3, 8000, "'array' has 3 channels of 1 samples each\n.*one equally long list per channel"),
        ((1.0,), 10**12, "a sample rate of 1000000000000 Hz is beyond the limit"),
        ((1e300,), 8000, "not finite"),
    ],
)
def test_numbers_that_are_no_sound(values, rate, message):
    with pytest.raises(DataError, match=f"row 1: (sound of shape .*)?{message}"):
        MediaRef("a", "audio", "row 1", Samples(values, rate), Path()).load()


def test_sound_in_numbers_is_resampled_and_cut_too():
    source = Samples(tuple([0.5] * 800), 8000)
    found = MediaRef("a", "audio", "x", source, Path(), Wanted(sample_rate=16000, max_seconds=0.05)).load()
    assert (found.data.shape, found.sample_rate) == ((1, 800), 16000)
    assert found.data[0, 400].item() == pytest.approx(0.5, rel=0.01)


def test_grey_pictures_of_16_bits_keep_their_shades():
    shades = np.array([[0, 257, 32768, 65535]], np.uint16)
    for image, kind in ((Image.fromarray(shades), "PNG"), (Image.fromarray(shades.astype(np.int32)), "TIFF")):
        found = decode(saved(image, kind), "p", "image", "x").data
        assert found[:, 0].tolist() == [[0, 1, 128, 255]] * 3


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((2, 2), np.float32), "its pixels are floats"),
        (np.full((2, 2), 70000, np.int32), "its pixels are values from 70000 to 70000"),
        (np.full((2, 2), -1, np.int32), "its pixels are values from -1 to -1"),
    ],
)
def test_pixels_without_a_known_white_are_refused(pixels, message):
    with pytest.raises(DataError, match=f"row 1: {message}, and nothing says which of them is white"):
        decode(saved(Image.fromarray(pixels), "TIFF"), "p", "image", "row 1")


@pytest.mark.parametrize("kind", ["DDS", "EPS", "TGA", "ICNS"])
def test_formats_off_the_list_are_not_even_tried(kind):
    with pytest.raises(DataError, match="row 1: no picture that can be decoded: it is in none of the formats PNG") as e:
        decode(saved(Image.new("RGB", (16, 16)), kind), "p", "image", "row 1")
    assert "object at 0x" not in str(e.value)


@pytest.mark.filterwarnings("ignore::UserWarning")  # what Pillow thinks of damaged tags
@pytest.mark.parametrize("kind", [k for k in FORMATS if k != "AVIF"])
def test_damaged_pictures_never_give_another_error(kind):
    whole = saved(Image.effect_noise((16, 16), 50).convert("RGB"), kind)
    rng = np.random.default_rng(0)
    for _ in range(40):
        torn = bytearray(whole[: rng.integers(8, len(whole) + 1)])
        for place in rng.integers(0, min(len(torn), 120), 3):
            torn[place] = rng.integers(256)
        assert_read_or_named(bytes(torn), "image")


def test_tags_that_are_not_utf8_do_no_harm(tmp_path):
    tagged = bytearray(wav(tmp_path).read_bytes())
    info = b"INFOINAM\x04\0\0\0\xff\xfe\xfd\0"
    tagged += b"LIST" + len(info).to_bytes(4, "little") + info
    tagged[4:8] = (len(tagged) - 8).to_bytes(4, "little")
    assert decode(bytes(tagged), "s", "audio", "x").data.shape == (1, 16000)


@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile secret.wav\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nsecret.wav\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    ],
    ids=["concat", "hls", "sdp"],
)
@pytest.mark.parametrize("name", ["list.m3u8", "list.wav", "concat:secret.wav"])
def test_no_medium_opens_another_file(tmp_path, monkeypatch, text, name):
    monkeypatch.chdir(tmp_path)
    wav(tmp_path, "secret.wav")
    Path(name).write_text(text)
    for content in (Path(name), text.encode()):
        with pytest.raises(DataError, match="row 1: no video or sound that can be decoded"):
            decode(content, "s", "audio", "row 1")


def motion_jpeg(*sides: int) -> bytes:
    """An AVI file of black squares."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi") as file:
        stream = file.add_stream("mjpeg", rate=10)
        stream.width = stream.height = sides[0]
        stream.pix_fmt = "yuvj420p"
        for index, side in enumerate(sides):
            packet = av.Packet(saved(Image.new("RGB", (side, side)), "JPEG"))
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, index, index, Fraction(1, 10)
            file.mux(packet)
    return buffer.getvalue()


def test_frames_of_different_sizes_are_named_or_brought_to_one():
    content = motion_jpeg(16, 16, 32, 32)
    with pytest.raises(DataError, match="row 1: its frames have different sizes: 16x16 and 32x32"):
        decode(content, "v", "video", "row 1")
    assert decode(content, "v", "video", "x", Wanted(height=8, width=8)).data.shape == (4, 3, 8, 8)


def test_streams_that_nothing_decodes_are_named():
    sound = bytearray(pcm(1, 8000, 100))
    sound[20:22] = b"\x77\x77"  # the number of the codec
    video = motion_jpeg(16, 16).replace(b"MJPG", b"zzzz")
    for content, modality in ((bytes(sound), "audio"), (video, "video")):
        with pytest.raises(DataError, match=f"row 1: its {modality} stream is of a codec that cannot be decoded"):
            decode(content, "m", modality, "row 1")


def test_damaged_files_of_sound_and_video_never_give_another_error(tmp_path):
    rng = np.random.default_rng(0)
    for whole, modality in ((mp4(tmp_path, frames=3).read_bytes(), "video"), (pcm(2, 8000, 300), "audio")):
        for _ in range(30):
            torn = bytearray(whole)
            for place in rng.integers(0, len(torn), 4):
                torn[place] = rng.integers(256)
            assert_read_or_named(bytes(torn), modality)


def test_a_rate_that_asks_for_endless_frames_is_refused(tmp_path):
    with pytest.raises(DataError, match="row 1: 1 seconds of video at 1e.09 frames per second are more than"):
        decode(mp4(tmp_path), "v", "video", "row 1", Wanted(fps=1e9))
    with pytest.raises(DataError, match="row 1: decoded it takes more than"):
        decode(png(), "p", "image", "row 1", Wanted(height=10**6, width=10**6))
