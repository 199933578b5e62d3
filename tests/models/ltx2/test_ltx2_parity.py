"""The adapter against diffusers' LTX2Pipeline on the same folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import LTX2Pipeline

from omni_portable.models.streams import join, split
from tests.models.ltx2.conftest import SIZE, TOKENS
from tests.support.ode import sample_ode

PROMPTS = ["a cat and its purr", "a ship in a storm, longer than the model reads of it", ""]
NEGATIVE = "noise"
STEPS = 4
PLAIN = {"stg_scale": 0.0, "audio_stg_scale": 0.0, "modality_scale": 1.0, "audio_modality_scale": 1.0}


@pytest.fixture(scope="module", params=["2.3", "2.0"])
def both(request, ltx_folders, load_ltx):
    """(stock pipeline, adapter) on one folder."""
    pipeline = LTX2Pipeline.from_pretrained(ltx_folders[request.param], dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, load_ltx(request.param)


def noise_for(adapter, rows):
    return torch.randn(rows, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(1))


def stock(
    pipeline,
    adapter,
    noise,
    output_type,
    *,
    prompts=PROMPTS,
    guidance=1.0,
    audio_guidance=1.0,
    rescale=0.0,
    perturbed=PLAIN,
):
    streams = split(noise, adapter.folder.shapes(SIZE))
    # the pipeline normalises sound that it is given
    audio = streams["audio"] * pipeline.audio_vae.latents_std + pipeline.audio_vae.latents_mean
    return pipeline(
        prompt=list(prompts),
        negative_prompt=[NEGATIVE] * len(prompts),
        height=SIZE.height,
        width=SIZE.width,
        num_frames=SIZE.num_frames,
        frame_rate=SIZE.frame_rate,
        num_inference_steps=STEPS,
        guidance_scale=guidance,
        audio_guidance_scale=audio_guidance,
        guidance_rescale=rescale,
        audio_guidance_rescale=rescale,
        latents=streams["video"].clone(),
        audio_latents=audio,
        max_sequence_length=TOKENS,
        output_type=output_type,
        **perturbed,
    )


def stock_latents(pipeline, adapter, noise, **guidance):
    """Normalised tokens of both streams in one vector."""
    output = stock(pipeline, adapter, noise, "latent", **guidance)
    video = pipeline._normalize_latents(
        output.frames, pipeline.vae.latents_mean, pipeline.vae.latents_std, pipeline.vae.config.scaling_factor
    )
    audio = pipeline._pack_audio_latents(output.audio)
    audio = (audio - pipeline.audio_vae.latents_mean) / pipeline.audio_vae.latents_std
    return join({"video": pipeline._pack_latents(video), "audio": audio}, adapter.folder.shapes(SIZE))


def test_prompt_embeddings_are_the_stock_ones(both):
    pipeline, adapter = both
    for prompt, encoded in zip(PROMPTS, adapter.encode(PROMPTS, None, SIZE), strict=True):
        with torch.no_grad():
            embeds, mask, _, _ = pipeline.encode_prompt([prompt], None, False, max_sequence_length=TOKENS)
            video, audio, kept = pipeline.connectors(embeds, mask, padding_side="left")
        assert torch.equal(encoded["prompt_embeds"], video[0])
        assert torch.equal(encoded["audio_prompt_embeds"], audio[0])
        assert bool(kept.all())
        assert "prompt_mask" not in encoded


def test_positions_are_the_stock_ones(both):
    pipeline, adapter = both
    encoded = adapter.encode(PROMPTS[:1], None, SIZE)[0]
    frames, height, width = adapter.folder.grid(SIZE)
    rope, audio_rope = pipeline.transformer.rope, pipeline.transformer.audio_rope
    expected = rope.prepare_video_coords(1, frames, height, width, "cpu", fps=SIZE.frame_rate)[0]
    assert torch.equal(encoded["video_coords"], expected)
    expected = audio_rope.prepare_audio_coords(1, adapter.folder.audio_frames(SIZE), "cpu")[0]
    assert torch.equal(encoded["audio_coords"], expected)


@pytest.mark.parametrize("steps", [2, 4, 10])
def test_schedule_is_the_stock_one(both, steps):
    pipeline, adapter = both
    sigmas = np.linspace(1.0, 1 / steps, steps)
    tokens = adapter.folder.shapes(SIZE)["video"][0]
    config = pipeline.scheduler.config
    slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
    mu = tokens * slope + config.base_shift - slope * config.base_image_seq_len
    pipeline.scheduler.set_timesteps(sigmas=sigmas, mu=mu)
    schedule = adapter.schedule(steps, SIZE)
    assert list(schedule.sigmas) == pipeline.scheduler.sigmas.tolist()


@pytest.mark.parametrize(
    "guidance",
    [
        {"guidance": 1.0, "audio_guidance": 1.0},
        {"guidance": 4.0, "audio_guidance": 4.0},
        {"guidance": 3.0, "audio_guidance": 7.0, "rescale": 0.7},
    ],
)
def test_ode_sampling_gives_the_stock_latents(both, load_ltx, ltx_folders, guidance):
    pipeline, adapter = both
    if guidance["audio_guidance"] != guidance["guidance"]:
        variant = next(name for name, path in ltx_folders.items() if path == adapter.path)
        adapter = load_ltx(variant, audio_guidance_scale=guidance["audio_guidance"], guidance_rescale=0.7)
    noise = noise_for(adapter, len(PROMPTS))
    expected = stock_latents(pipeline, adapter, noise, **guidance)
    latents = sample_ode(adapter, PROMPTS, noise, SIZE, steps=STEPS, guidance=guidance["guidance"], negative=NEGATIVE)
    for name, (start, stop) in adapter.latent_streams(SIZE).items():
        assert (expected - noise)[:, start:stop].abs().max() > 0.1, name
    torch.testing.assert_close(latents, expected, atol=2e-5, rtol=1e-5)


PERTURBED = {
    "stg": {"stg_scale": 1.0, "audio_stg_scale": 2.0},
    "stg of the sound as of the video": {"stg_scale": 1.5},
    "modality": {"modality_scale": 3.0},
    "all": {"stg_scale": 1.0, "modality_scale": 3.0, "audio_modality_scale": 2.0},
}


@pytest.mark.parametrize("name", PERTURBED)
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_guidance_by_perturbed_forwards_gives_the_stock_latents(both, load_ltx, ltx_folders, name, guidance):
    pipeline, plain = both
    variant = next(variant for variant, path in ltx_folders.items() if path == plain.path)
    adapter = load_ltx(variant, stg_blocks=[1], guidance_rescale=0.7, **PERTURBED[name])
    noise = noise_for(adapter, 2)
    settings = PLAIN | {"audio_stg_scale": None, "audio_modality_scale": None} | PERTURBED[name]
    expected = stock_latents(
        pipeline,
        adapter,
        noise,
        prompts=PROMPTS[:2],
        guidance=guidance,
        audio_guidance=guidance,
        rescale=0.7,
        perturbed=settings | {"spatio_temporal_guidance_blocks": [1]},
    )
    settled = {"steps": STEPS, "guidance": guidance, "negative": NEGATIVE}
    latents = sample_ode(adapter, PROMPTS[:2], noise, SIZE, **settled)
    torch.testing.assert_close(latents, expected, atol=2e-5, rtol=1e-5)
    assert (latents - sample_ode(plain, PROMPTS[:2], noise, SIZE, **settled)).abs().max() > 1e-3


def test_media_are_the_stock_ones(both):
    pipeline, adapter = both
    noise = noise_for(adapter, 2)
    output = stock(pipeline, adapter, noise, "np", prompts=PROMPTS[:2])
    latents = sample_ode(adapter, PROMPTS[:2], noise, SIZE, steps=STEPS)
    rate = {"2.3": 3200, "2.0": 1600}["2.3" if adapter.folder.vocoder.endswith("BWE") else "2.0"]
    for row, artifacts in enumerate(adapter.decode(latents, SIZE)):
        video, audio = artifacts["video"], artifacts["audio"]
        assert (video.layout, video.fps, tuple(video.data.shape)) == ("TCHW", 24.0, (9, 3, 64, 96))
        difference = video.data.permute(0, 2, 3, 1).numpy() - output.frames[row] * 255
        assert np.abs(difference).max() < 0.51
        assert (audio.layout, audio.sample_rate, audio.data.dtype) == ("CT", rate, torch.float32)
        assert audio.data.shape[1] / rate == pytest.approx(SIZE.seconds, abs=0.05)
        torch.testing.assert_close(audio.data, output.audio[row].clamp(-1, 1), atol=1e-3, rtol=1e-3)
        assert audio.data.std() > 0
