"""The adapter against diffusers' modular MiniMax-H3 pipeline on the same folder."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Scheduler
from diffusers import MiniMaxH3Transformer3DModel as Transformer
from diffusers.image_processor import VaeImageProcessor
from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3Blocks, MiniMaxH3ModularPipeline, before_denoise
from diffusers.video_processor import VideoProcessor
from PIL import Image
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen3VLForConditionalGeneration

from omni_portable.models.minimax_h3.coders import KEYFRAME_SEED
from omni_portable.models.minimax_h3.tiny import TEXT_LAYER
from omni_portable.models.streams import join, split
from omni_portable.samplers.noise import noise_seed, normal
from tests.models.minimax_h3.conftest import ELEMENTS, SIZE
from tests.support.ode import sample_ode

PROMPT = "a ship in a storm"
STEPS = 5


@pytest.fixture(scope="module")
def pipeline(h3_folder):
    """The stock blocks on the tiny folder; of the processor, which needs one more package, only what they use."""
    tokenizer = Qwen2Tokenizer.from_pretrained(h3_folder / "tokenizer")
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    processor = SimpleNamespace(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(h3_folder / "processor"),
        create_mm_token_type_ids=lambda rows: [[int(token == pad) for token in row] for row in rows],
    )
    pipe = MiniMaxH3Blocks().init_pipeline()
    parts = {
        "transformer": Transformer.from_pretrained(h3_folder / "transformer"),
        "text_encoder": Qwen3VLForConditionalGeneration.from_pretrained(h3_folder / "text_encoder"),
        "tokenizer": tokenizer,
        "processor": processor,
        "vae": AutoencoderKLMiniMaxH3.from_pretrained(h3_folder / "vae"),
        "audio_vae": AutoencoderKLMiniMaxH3Audio.from_pretrained(h3_folder / "audio_vae"),
        "scheduler": MiniMaxH3Scheduler.from_pretrained(h3_folder / "scheduler"),
        "audio_scheduler": MiniMaxH3Scheduler.from_pretrained(h3_folder / "audio_scheduler"),
        "image_processor": VaeImageProcessor(vae_scale_factor=4),
        "video_processor": VideoProcessor(vae_scale_factor=4, do_normalize=False),
    }
    for name, part in parts.items():
        setattr(pipe, name, part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MiniMaxH3ModularPipeline, "min_duration", 0.5)
        patch.setattr(MiniMaxH3ModularPipeline, "text_encoder_layer", TEXT_LAYER)
        yield pipe


@pytest.fixture
def keyframe_noise(monkeypatch):
    """Let the stock pipeline draw the trace of noise in given frames as the adapter does."""
    anchors: list[str] = []

    def drawn(shape, **_):
        return normal(noise_seed(KEYFRAME_SEED, anchors.pop(0), 0, 0, "keyframe"), shape)

    monkeypatch.setattr(before_denoise, "randn_tensor", drawn)
    return anchors


def stock(pipe, adapter, noise, output, **media):
    streams = split(noise, adapter.folder.shapes(SIZE))
    geometry = adapter.folder.geometry(SIZE)
    patch = geometry.patch
    grid = streams["video"][0].view(
        geometry.frames, geometry.height // patch, geometry.width // patch, -1, patch, patch
    )
    video = grid.permute(3, 0, 1, 4, 2, 5).flatten(2, 3).flatten(3, 4).unsqueeze(0)
    audio = streams["audio"][0].view(2, geometry.audio, -1).permute(0, 2, 1)
    assert torch.equal(before_denoise.patchify_video_latents(video, (1, patch, patch)), streams["video"][0])
    return pipe(
        prompt=PROMPT,
        height=SIZE.height,
        width=SIZE.width,
        num_frames=SIZE.num_frames,
        num_inference_steps=STEPS + 1,
        latents=video.clone(),  # it writes into what it is given
        audio_latents=audio.clone(),
        output_type="np",
        output=output,
        **media,
    )


def stock_latents(pipe, adapter, noise, **media):
    """The generated rows of both streams, sound in the adapter's scale."""
    state = stock(pipe, adapter, noise, ["latents", "audio_latents"], **media)
    rows = before_denoise.patchify_video_latents(state["latents"], adapter.folder.patch)
    audio = state["audio_latents"].permute(0, 2, 1).flatten(0, 1) * 4.0
    return join({"video": rows.unsqueeze(0), "audio": audio.unsqueeze(0)}, adapter.folder.shapes(SIZE))


def pictures(frames, names):
    keys = {"first_frame": "image", "last_frame": "last_image"}
    return {keys[name]: Image.fromarray(frames[name].data.permute(1, 2, 0).numpy()) for name in names}


def noise_for(rows=1):
    return torch.randn(rows, ELEMENTS, generator=torch.Generator().manual_seed(1))


def test_schedules_are_the_stock_ones(pipeline, load_h3):
    adapter = load_h3(components=())
    for steps in (1, 5, 10, 40):
        pipeline.scheduler.set_timesteps(steps + 1)
        pipeline.audio_scheduler.set_timesteps(steps + 1)
        schedule = adapter.schedule(steps, SIZE)
        assert list(schedule.sigmas) == pipeline.scheduler.sigmas.tolist()
        assert schedule.timestep_scale == 1.0
        sigmas = torch.tensor(schedule.sigmas)
        torch.testing.assert_close(adapter._sound.level(sigmas), pipeline.audio_scheduler.sigmas, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("given", [(), ("first_frame",), ("last_frame",), ("first_frame", "last_frame")])
def test_ode_sampling_gives_the_stock_latents(pipeline, load_h3, frames, keyframe_noise, given):
    adapter, noise = load_h3(), noise_for()
    keyframe_noise += [name.removesuffix("_frame") for name in given]
    expected = stock_latents(pipeline, adapter, noise, **pictures(frames, given))
    assert keyframe_noise == []
    media = [{name: frames[name] for name in given}]
    latents = sample_ode(adapter, [PROMPT], noise, SIZE, steps=STEPS, media=media)
    for name, (start, stop) in adapter.latent_streams(SIZE).items():
        assert (expected - noise)[:, start:stop].abs().max() > 0.1, name
    torch.testing.assert_close(latents, expected, atol=2e-5, rtol=2e-5)


def test_given_frames_change_what_is_drawn(load_h3, frames):
    adapter, noise = load_h3(), noise_for()
    plain = sample_ode(adapter, [PROMPT], noise, SIZE, steps=STEPS)
    guided = sample_ode(adapter, [PROMPT], noise, SIZE, steps=STEPS, media=[frames])
    assert (plain - guided).abs().max() > 1e-3


def test_media_are_the_stock_ones(pipeline, load_h3):
    adapter, noise = load_h3(), noise_for()
    state = stock(pipeline, adapter, noise, ["videos", "audio", "sampling_rate"])
    latents = sample_ode(adapter, [PROMPT], noise, SIZE, steps=STEPS)
    (made,) = adapter.decode(latents, SIZE)
    video, audio = made["video"], made["audio"]
    assert (video.layout, video.fps, tuple(video.data.shape)) == ("TCHW", 24.0, (22, 3, 16, 24))
    difference = video.data.permute(0, 2, 3, 1).numpy() - np.asarray(state["videos"][0]) * 255
    assert np.abs(difference).max() < 0.51
    assert (audio.layout, audio.sample_rate) == ("CT", state["sampling_rate"])
    torch.testing.assert_close(audio.data, state["audio"][0], atol=1e-4, rtol=1e-4)
    assert audio.data.shape[1] / audio.sample_rate == pytest.approx(SIZE.seconds, abs=0.02)


def test_a_sample_does_not_depend_on_its_pack(load_h3, frames):
    """Rows of other text lengths, with and without frames, beside it: the same bits."""
    adapter, noise = load_h3(), noise_for(3)
    prompts, media = (
        [PROMPT, "a much, much longer prompt than that", ""],
        [frames, {}, {"last_frame": frames["last_frame"]}],
    )
    together = sample_ode(adapter, prompts, noise, SIZE, steps=2, media=media)
    for row in range(3):
        alone = sample_ode(adapter, prompts[row : row + 1], noise[row : row + 1], SIZE, steps=2, media=[media[row]])
        assert torch.equal(alone[0], together[row])
