"""Sanity of sound and video: levels, silence, clipping, motion, flicker, and pictures scorers on frames."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.errors import ArtifactError, ConfigError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.reward import RewardSample
from omni_portable.reward.audio import CLIPPING, ENERGY, SILENCE, AudioEnergyOptions
from omni_portable.reward.images import sample_pictures
from omni_portable.reward.jpeg import COMPRESSIBILITY, JpegOptions
from omni_portable.reward.jpeg_scorer import jpeg_kilobytes
from omni_portable.reward.ocr import OcrOptions
from omni_portable.reward.ocr_scorer import OcrScorer
from omni_portable.reward.requirements import declared_requirements
from omni_portable.reward.video import FLICKER, MOTION
from tests.reward.reward_samples import draw
from tests.support.media import fading, tone


def of(*artifacts: MediaArtifact, **metadata: object) -> RewardSample:
    return RewardSample("s", "g", "a prompt", {a.modality: a for a in artifacts}, metadata)


def sound(values: torch.Tensor, rate: int = 1000) -> MediaArtifact:
    return MediaArtifact("audio", "audio", values[None], "CT", sample_rate=rate)


def video(frames: torch.Tensor) -> MediaArtifact:
    """(T, H, W) grey levels of 0 to 255 as a video."""
    return MediaArtifact("video", "video", frames.to(torch.uint8)[:, None].repeat(1, 3, 1, 1), "TCHW", fps=8.0)


def score(spec, *samples, **options):
    return spec.load()(spec.options(**options)).score(list(samples))


def test_energy_is_the_level_of_the_sound():
    output = score(ENERGY, *(of(tone(size=size)) for size in (1.0, 0.1, 1e-3, 0.0)), low_db=-30.0, high_db=-10.0)
    assert output.components["level_db"] == pytest.approx([-3.01, -23.01, -63.01, -120], abs=0.01)
    assert output.scores == pytest.approx([1 - 6.99 / 20, 1, 0, 0], abs=1e-3)
    with pytest.raises(ConfigError):
        AudioEnergyOptions(low_db=0.0, high_db=-1.0)


def test_silence_is_the_share_of_silent_windows():
    half = torch.cat([torch.full((500,), 0.5), torch.zeros(500)])
    samples = [of(sound(values)) for values in (half, torch.zeros(1000), torch.full((1000,), 0.5))]
    output = score(SILENCE, *samples)
    assert output.scores == [0.5, 0.0, 1.0]
    assert score(SILENCE, of(sound(torch.full((30,), 0.5)))).scores == [1.0], "shorter than a window"


def test_clipping_is_the_share_of_clipped_samples():
    clipped = torch.zeros(1000)
    clipped[:5] = -1.0
    output = score(CLIPPING, of(sound(clipped)), of(tone(size=0.9)), of(sound(torch.ones(10))))
    assert output.scores == pytest.approx([0.5, 1.0, 0.0])
    assert output.components["clipped_share"] == pytest.approx([0.005, 0, 1])
    assert output.components["peak"] == pytest.approx([1, 0.9, 1], abs=1e-3)


def test_motion_grows_with_the_change_between_frames():
    levels = torch.arange(6)[:, None, None].expand(6, 8, 8)
    output = score(MOTION, *(of(video(levels * step)) for step in (0, 2, 40)))
    assert output.components["change"] == pytest.approx([0, 2 / 255, 40 / 255], rel=1e-3)
    assert output.scores == pytest.approx([0, 2 / 255 / 0.02, 1], rel=1e-3)


def test_flicker_is_light_that_comes_and_goes():
    ramp = torch.arange(8)[:, None, None].expand(8, 16, 16) * 20
    blink = (torch.arange(8)[:, None, None] % 2).expand(8, 16, 16) * 51
    corner = torch.zeros(8, 16, 16)
    corner[:, :8, :8] = blink[:, :8, :8]
    output = score(FLICKER, *(of(video(v)) for v in (ramp, blink, corner)), full=0.4)
    assert output.components["flicker"] == pytest.approx([0, 0.2, 0.05], abs=1e-3)
    assert output.scores == pytest.approx([1, 0.5, 0.875], abs=1e-2)
    assert score(FLICKER, of(video(blink[:, :3, :5]))).scores == [0.0], "a picture smaller than the grid"


@pytest.mark.parametrize(("spec", "frames"), [(MOTION, 1), (FLICKER, 2)])
def test_videos_with_too_few_frames_are_refused(spec, frames):
    with pytest.raises(ArtifactError, match=f"at least {frames + 1} frames"):
        score(spec, of(fading(frames)))


@pytest.mark.parametrize("spec", [ENERGY, SILENCE, CLIPPING])
def test_sound_that_is_none_is_refused(spec):
    with pytest.raises(ArtifactError, match="asks for the artifact 'audio'"):
        score(spec, of(fading()))
    for values in (torch.zeros(0), torch.tensor([float("nan")])):
        with pytest.raises(ArtifactError, match="empty or not finite"):
            score(spec, of(sound(values)))


def test_every_kth_frame_counts_alike():
    frames = torch.stack([draw(text) for text in ("R7", "R7", "Q2", "R7", "0A")])
    clip = of(MediaArtifact("video", "video", frames, "TCHW", fps=4.0), ground_truth="R7")
    options = JpegOptions(artifact="video", modality="video", every=2)
    expected = [jpeg_kilobytes(p, 95) for p in sample_pictures(clip, "video", "video", 2, "x")]
    assert len(expected) == 3
    output = COMPRESSIBILITY.load()(options).score([clip])
    assert output.components["kilobytes"] == pytest.approx([sum(expected) / 3])
    ocr = OcrScorer(OcrOptions(artifact="video", modality="video", every=2)).score([clip, clip])
    single = OcrScorer(OcrOptions()).score(
        [of(MediaArtifact("image", "image", frames[i], "CHW"), ground_truth="R7") for i in (0, 2, 4)]
    )
    assert ocr.scores == pytest.approx([sum(single.scores) / 3] * 2)
    assert ocr.details[0]["text"] == single.details[0]["text"]
    assert ocr.components["exact_match"] == pytest.approx([1 / 3] * 2)


def test_a_video_is_not_read_as_an_image():
    clip = of(fading(), ground_truth="R7")
    with pytest.raises(ArtifactError, match="needs 'video' to be image, but it is video"):
        OcrScorer(OcrOptions(artifact="video")).score([clip])
    wrong = replace(clip, artifacts={"video": fading(), "image": draw("R7")})  # type: ignore[dict-item]
    with pytest.raises(ArtifactError, match="unlabelled"):
        OcrScorer(OcrOptions()).score([wrong])
    with pytest.raises(ConfigError, match="every=0"):
        OcrOptions(every=0)


def test_what_specs_declare_follows_the_options():
    spec = registry.spec("reward", "ocr")
    assert declared_requirements(spec, OcrOptions(artifact="clip", modality="video")).artifacts == {"clip": "video"}
    assert declared_requirements(spec, OcrOptions()).artifacts == {"image": "image"}
    assert declared_requirements(registry.spec("reward", "audio_energy"), AudioEnergyOptions()).artifacts == {
        "audio": "audio"
    }
