"""Streams, sizes, sound, layouts and refusals of the LTX-2 adapter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.errors import ArtifactError, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter, ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.ltx2 import SPEC, LTX2Options
from omni_portable.models.ltx2.adapter import LTX2Adapter
from omni_portable.models.ltx2.folder import read_folder
from omni_portable.models.ltx2.layout import LAYOUT
from omni_portable.models.ltx2.perturbed import perturbations
from omni_portable.models.ltx2.spectrogram import log_mel
from tests.models.ltx2.conftest import SIZE
from tests.support.families import assert_round_trip, choice


def video(shape=(9, 3, 64, 96)):
    return MediaArtifact("video", "video", torch.full(shape, 90, dtype=torch.uint8), "TCHW", fps=24.0)


def sound(samples=500, rate=1600, channels=2):
    return MediaArtifact("audio", "audio", 0.1 * torch.ones(channels, samples), "CT", sample_rate=rate)


def test_the_spec_imports_without_torch():
    code = "import sys; from omni_portable.models.ltx2 import SPEC; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registered_spec_loads_an_adapter(load_ltx):
    assert registry.spec("model", "ltx2") is SPEC
    assert isinstance(load_ltx(), DiffusionAdapter)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sequence_length": 0}, "at least 1"),
        ({"audio_guidance_scale": -1.0}, "must be 0"),
        ({"guidance_rescale": 1.5}, r"in \[0, 1\]"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        LTX2Options(**options)


def test_streams_lie_one_after_the_other(load_ltx):
    adapter = load_ltx(components=())
    # 2 latent frames of 2 x 3 tokens with 8 channels; 9 frames are 0.375 s, or 9 audio latents at 25 per second
    assert adapter.folder.shapes(SIZE) == {"video": (12, 8), "audio": (9, 8)}
    assert adapter.latent_shape(SIZE) == (168,)
    assert adapter.latent_streams(SIZE) == {"video": (0, 96), "audio": (96, 168)}
    slower = Extent(64, 96, 9, 12.0)
    assert adapter.folder.shapes(slower)["audio"] == (19, 8)


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (Extent(48, 96, 9, 24.0), "rollout.height to 32"),
        (Extent(64, 96, 12, 24.0), "rollout.num_frames to 17"),
        (Extent(64, 96, 9, 0.0), "rollout.frame_rate"),
        (Extent(64, 96, 1, 240.0), "too short for sound"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_refused(load_ltx, extent, message):
    with pytest.raises(ConfigError, match=message):
        load_ltx(components=()).latent_shape(extent)


def test_both_streams_hear_of_each_other(load_ltx):
    """A change of the sound's latents changes the video's prediction, and the other way round."""
    adapter = load_ltx(components=("transformer", "text_encoder"))
    conditioning = adapter.collate(adapter.encode(["a cat"], None, SIZE))
    latents = torch.randn(1, 168, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        base = adapter.velocity(latents, torch.tensor([500.0]), conditioning, 1.0)
        for changed, other in (((0, 96), (96, 168)), ((96, 168), (0, 96))):
            moved = latents.clone()
            moved[:, changed[0] : changed[1]] += 1.0
            found = adapter.velocity(moved, torch.tensor([500.0]), conditioning, 1.0)
            assert (found - base)[:, other[0] : other[1]].abs().max() > 1e-6


def test_guidance_needs_a_negative_prompt(load_ltx):
    adapter = load_ltx(components=("transformer", "text_encoder"))
    conditioning = adapter.collate(adapter.encode(["a cat"], None, SIZE))
    with pytest.raises(ModelError, match="guidance_scale 2.0 needs"):
        adapter.velocity(torch.zeros(1, 168), torch.tensor([500.0]), conditioning, 2.0)


def test_prompts_fill_whole_registers(load_ltx):
    with pytest.raises(ConfigError, match="set it to a multiple of 8"):
        load_ltx(components=("text_encoder",), max_sequence_length=12)
    with pytest.raises(ConfigError, match="takes no input media"):
        load_ltx(components=("text_encoder",)).encode(["x"], [{"image": video()}], SIZE)


def test_the_layout_round_trip_is_bit_exact(load_ltx):
    fused = (
        r"transformer_blocks\.0\.attn1\.to_qkv\.weight",
        r"transformer_blocks\.1\.audio_attn1\.to_qkv\.bias",
        r"transformer_blocks\.0\.attn2\.to_q\.weight",
        r"transformer_blocks\.0\.audio_to_video_attn\.to_k\.weight",
        r"transformer_blocks\.0\.audio_ff\.net\.2\.weight",
    )
    assert_round_trip(load_ltx(components=("transformer",)), LAYOUT, fused)


def test_encoded_media_have_the_latents_shape(load_ltx):
    adapter = load_ltx(components=("vae",))
    latents = adapter.encode_media({"video": video(), "audio": sound()}, SIZE)
    assert latents.shape == (168,)
    assert latents.dtype == torch.float32
    louder = adapter.encode_media({"video": video(), "audio": sound(channels=1)}, SIZE)
    assert torch.equal(louder, latents)  # one channel stands for both


@pytest.mark.parametrize(
    ("media", "message"),
    [
        ({"video": video()}, "asks for the artifact 'audio'"),
        ({"video": video((5, 3, 64, 96)), "audio": sound()}, "5 x 64 x 96 frames"),
        ({"video": video(), "audio": sound(rate=3200)}, "2 channels at 3200 Hz, expected 2 at 1600 Hz"),
        ({"video": video(), "audio": sound(channels=3)}, "has 3 channels"),
        ({"video": video(), "audio": sound(samples=900)}, "lasts 0.562 s, the video beside it 0.375 s"),
    ],
)
def test_media_that_do_not_fit(load_ltx, media, message):
    with pytest.raises(ArtifactError, match=message):
        load_ltx(components=("vae",)).encode_media(media, SIZE)


def test_a_spectrogram_shows_the_pitch():
    """A pure tone is loudest in the band around it, and silence is the floor."""
    rate, hop, bins = 16000, 160, 64
    seconds = torch.arange(rate // 2) / rate
    tone = log_mel(torch.sin(2 * torch.pi * 1000.0 * seconds).unsqueeze(0), rate, hop, bins)
    assert tone.shape == (1, 51, 64)
    peaks = tone[0, 5:-5].argmax(dim=1)
    assert peaks.unique().numel() == 1
    higher = log_mel(torch.sin(2 * torch.pi * 3000.0 * seconds).unsqueeze(0), rate, hop, bins)
    assert higher[0, 25].argmax() > peaks[0]
    silence = log_mel(torch.zeros(1, 400), rate, hop, bins)
    torch.testing.assert_close(silence, torch.full_like(silence, 1e-5).log())


def test_every_attention_layer_takes_the_kernel(ltx_folders):
    requests = LTX2Adapter.attention_requests(ltx_folders["2.3"], "float32", True)
    assert [(r.component, r.head_dim) for r in requests] == [
        ("transformer", 16),
        ("transformer", 8),
        ("text_encoder", 8),
    ]
    math = {"transformer": choice("transformer", "_native_math")}
    load = ModelLoad(ltx_folders["2.3"], torch.device("cpu"), torch.float32, ("transformer",), attention=math)
    assert LTX2Adapter(load).attention_in_use == {"transformer": "_native_math"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stg_scale": -1.0}, "stg_scale is -1"),
        ({"modality_scale": 0.5}, "modality_scale is 0.5; it must be at least 1"),
        ({"stg_scale": 1.0, "stg_blocks": []}, "at least one block"),
    ],
)
def test_perturbations_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        LTX2Options(**options)


def test_blocks_that_the_transformer_does_not_have_are_refused(load_ltx):
    with pytest.raises(ConfigError, match=r"names block 28; the transformer of .* has 2"):
        load_ltx(components=(), stg_scale=1.0)


def test_a_transformer_that_cannot_skip_its_attention_is_refused(ltx_folders):
    folder = read_folder(ltx_folders["2.3"])
    plain = replace(folder, configs={**folder.configs, "transformer": {**folder.transformer, "perturbed_attn": False}})
    with pytest.raises(ConfigError, match="cannot skip its self-attention"):
        perturbations(LTX2Options(stg_scale=1.0, stg_blocks=[1]), plain)
    assert perturbations(LTX2Options(), plain) == ()
