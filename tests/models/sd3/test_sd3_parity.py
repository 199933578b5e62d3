"""The adapter against diffusers' StableDiffusion3Pipeline on the same folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from omni_portable.contracts.rollout import Extent
from omni_portable.models.policy import transition
from omni_portable.models.sd3 import SD3Options

SIZE = Extent(16, 16)

PROMPTS = ["the text R7", "a sign that says hello, much longer than the model reads", ""]
NEGATIVE = "blurry"
TOKENS = 24
HEIGHT, WIDTH, STEPS = 16, 24, 4


@pytest.fixture(scope="module", params=["clip", "t5", "sd35"])
def both(request, tiny_folders, load_tiny):
    """(stock pipeline, adapter) on one folder."""
    no_t5 = {} if request.param == "t5" else {"text_encoder_3": None, "tokenizer_3": None}
    pipeline = StableDiffusion3Pipeline.from_pretrained(tiny_folders[request.param], dtype=torch.float32, **no_t5)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, load_tiny(request.param, options=SD3Options(max_sequence_length=TOKENS))


def stock_encoding(pipeline, prompts):
    with torch.no_grad():
        embeds, _, pooled, _ = pipeline.encode_prompt(
            prompts, None, None, do_classifier_free_guidance=False, max_sequence_length=TOKENS
        )
    return embeds, pooled


def test_prompt_embeddings_are_the_stock_ones(both):
    pipeline, adapter = both
    for prompt, encoded in zip(PROMPTS, adapter.encode(PROMPTS, None, SIZE), strict=True):
        embeds, pooled = stock_encoding(pipeline, [prompt])
        assert torch.equal(encoded["prompt_embeds"], embeds[0])
        assert torch.equal(encoded["pooled_prompt_embeds"], pooled[0])


def test_batched_stock_embeddings_agree_too(both):
    pipeline, adapter = both
    embeds, pooled = stock_encoding(pipeline, PROMPTS)
    batch = adapter.collate(adapter.encode(PROMPTS, None, SIZE))
    torch.testing.assert_close(batch["prompt_embeds"], embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(batch["pooled_prompt_embeds"], pooled, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_schedule_is_the_stock_one(both, steps):
    pipeline, adapter = both
    noise = torch.zeros(1, *adapter.latent_shape(Extent(HEIGHT, WIDTH)))
    pipeline("x", height=HEIGHT, width=WIDTH, num_inference_steps=steps, latents=noise, output_type="latent")
    schedule = adapter.schedule(steps, Extent(HEIGHT, WIDTH))
    assert list(schedule.sigmas) == pipeline.scheduler.sigmas.tolist()
    sigmas = torch.tensor(schedule.sigmas[:-1])
    assert torch.equal(sigmas * schedule.timestep_scale, pipeline.scheduler.timesteps)


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_ode_sampling_gives_the_stock_latents_and_pixels(both, guidance):
    pipeline, adapter = both
    noise = torch.randn(
        len(PROMPTS), *adapter.latent_shape(Extent(HEIGHT, WIDTH)), generator=torch.Generator().manual_seed(1)
    )
    arguments = {
        "prompt": PROMPTS,
        "negative_prompt": [NEGATIVE] * len(PROMPTS),
        "height": HEIGHT,
        "width": WIDTH,
        "num_inference_steps": STEPS,
        "guidance_scale": guidance,
        "max_sequence_length": TOKENS,
    }
    expected = pipeline(**arguments, latents=noise.clone(), output_type="latent").images
    latents = sample_ode(adapter, noise, guidance)
    assert (expected - noise).abs().max() > 0.1
    torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)

    pictures = pipeline(**arguments, latents=noise.clone(), output_type="pil").images
    for picture, artifacts in zip(pictures, adapter.decode(latents, Extent(HEIGHT, WIDTH)), strict=True):
        image = artifacts["image"]
        assert (image.modality, image.layout, image.data.dtype) == ("image", "CHW", torch.uint8)
        difference = image.data.permute(1, 2, 0).numpy().astype(int) - np.asarray(picture).astype(int)
        assert np.abs(difference).max() <= 1  # a last-bit difference may sit on a rounding edge
        assert np.mean(difference != 0) < 0.01


def sample_ode(adapter, noise, guidance):
    schedule = adapter.schedule(STEPS, Extent(HEIGHT, WIDTH))
    positive = adapter.collate(adapter.encode(PROMPTS, None, SIZE))
    negative = adapter.collate(adapter.encode([NEGATIVE] * len(PROMPTS), None, SIZE))
    latents = noise
    with torch.no_grad():
        for step in range(schedule.num_steps):
            latents = transition(
                adapter,
                latents=latents,
                step_index=torch.full((len(PROMPTS),), step),
                schedule=schedule,
                kind="ode",
                noise_level=0.0,
                conditioning=positive,
                negative=negative,
                guidance_scale=guidance,
            ).next_latents
    return latents


def test_pixels_are_rounded_not_truncated(load_tiny):
    adapter = load_tiny("clip", components=("vae",))
    latents = torch.randn(1, *adapter.latent_shape(Extent(HEIGHT, WIDTH)), generator=torch.Generator().manual_seed(2))
    scaled = latents / adapter._vae.config.scaling_factor + adapter._vae.config.shift_factor
    with torch.no_grad():
        exact = (adapter._vae.decode(scaled).sample[0] / 2 + 0.5).clamp(0, 1) * 255
    pixels = adapter.decode(latents, Extent(HEIGHT, WIDTH))[0]["image"].data
    assert (pixels - exact).abs().max() <= 0.5
    assert (pixels - exact).min() < -0.1 < 0.1 < (pixels - exact).max()
