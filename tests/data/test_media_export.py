"""Artifacts as files: exact pictures, videos with their sound, and no file for what is none."""

from __future__ import annotations

import av
import pytest
import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.decode import decode
from omni_portable.data.export import write_audio, write_media, write_video
from tests.support.media import fading, picture, tone


def test_a_video_with_sound_plays_everywhere(tmp_path):
    write_video(fading(fps=12.5), tmp_path / "v.mp4", tone(0.8, 32000, channels=2))
    with av.open(str(tmp_path / "v.mp4")) as container:
        video, sound = container.streams.video[0], container.streams.audio[0]
        assert (video.codec_context.name, video.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (sound.codec_context.name, sound.rate, sound.channels) == ("aac", 32000, 2)
        assert float(video.average_rate) == 12.5
        assert abs(float(container.duration / av.time_base) - 0.8) < 0.1


@pytest.mark.parametrize(("height", "width"), [(2, 2), (33, 47), (48, 32)])
def test_every_size_can_be_written(tmp_path, height, width):
    write_video(fading(height=height, width=width, frames=3), tmp_path / "v.mp4")
    found = decode(tmp_path / "v.mp4", "v", "video", "x").data
    assert found.shape == (3, 3, height + height % 2, width + width % 2)
    assert found[2].float().mean() == pytest.approx(40, abs=2)


def test_sound_of_any_rate_goes_into_a_video(tmp_path):
    write_video(fading(), tmp_path / "v.mp4", tone(1.0, 18000))
    assert decode(tmp_path / "v.mp4", "s", "audio", "x").sample_rate == 22050


def test_loud_sound_is_clipped_not_wrapped(tmp_path):
    loud = MediaArtifact("a", "audio", torch.tensor([[2.0, -2.0, 0.5, 0.0]]), "CT", sample_rate=8000)
    write_audio(loud, tmp_path / "a.wav")
    found = decode(tmp_path / "a.wav", "a", "audio", "x").data
    assert found[0].tolist() == pytest.approx([1.0, -1.0, 0.5, 0.0], abs=1e-3)


def test_every_artifact_of_a_sample(tmp_path):
    text = MediaArtifact("response", "text", "hello", "str")
    latents = MediaArtifact("latents", "latents", torch.zeros(3), "any")
    artifacts = {"video": fading(), "audio": tone(), "image": picture(), "response": text, "latents": latents}
    files = write_media(artifacts, tmp_path, "0007")
    assert files == {"video": "0007.mp4", "audio": "0007.wav", "image": "0007.png"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0007.mp4", "0007.png", "0007.wav"]
    assert decode(tmp_path / "0007.mp4", "s", "audio", "x").sample_rate == 16000, "the video carries the sound"


def test_several_of_a_kind_are_told_apart(tmp_path):
    files = write_media({"left": picture(1), "right": picture(2)}, tmp_path, "3")
    assert files == {"left": "3-left.png", "right": "3-right.png"}
    assert torch.equal(decode(tmp_path / "3-right.png", "p", "image", "x").data, picture(2).data)


def test_what_is_no_medium_of_the_kind_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="is audio, not a video"):
        write_video(tone(), tmp_path / "v.mp4")
    with pytest.raises(ArtifactError, match="is image, not audio"):
        write_audio(picture(), tmp_path / "a.wav")
    with pytest.raises(ArtifactError, match="5 channels"):
        write_video(fading(), tmp_path / "v.mp4", tone(channels=5))
