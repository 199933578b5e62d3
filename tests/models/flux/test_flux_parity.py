"""The adapter against diffusers' FluxPipeline on the same folder."""

from __future__ import annotations

import pytest
import torch
from diffusers import FluxPipeline

from omni_portable.contracts.rollout import Extent
from omni_portable.models.flux import FluxOptions
from omni_portable.models.packing import pack
from tests.support.ode import assert_same_picture, sample_ode

PROMPTS = ["the text R7", "a sign that says hello, much longer than the model reads", ""]
NEGATIVE = "blurry"
TOKENS = 24
SIZE = Extent(16, 24)
STEPS = 4
TOLD = 2.5
"""Guidance that the model is told of."""


@pytest.fixture(scope="module", params=["dev", "schnell"])
def both(request, flux_folders, load_flux):
    """(stock pipeline, adapter) on one folder."""
    pipeline = FluxPipeline.from_pretrained(flux_folders[request.param], dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    options = FluxOptions(max_sequence_length=TOKENS, guidance_embedding=TOLD)
    return pipeline, load_flux(request.param, options=options)


def test_prompt_embeddings_are_the_stock_ones(both):
    pipeline, adapter = both
    for prompt, encoded in zip(PROMPTS, adapter.encode(PROMPTS, None, SIZE), strict=True):
        with torch.no_grad():
            embeds, pooled, _ = pipeline.encode_prompt([prompt], max_sequence_length=TOKENS)
        assert torch.equal(encoded["prompt_embeds"], embeds[0])
        assert torch.equal(encoded["pooled_prompt_embeds"], pooled[0])


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_schedule_is_the_stock_one(both, steps):
    pipeline, adapter = both
    noise = pack(torch.zeros(1, *adapter.latent_shape(SIZE)))
    pipeline(
        "x",
        height=SIZE.height,
        width=SIZE.width,
        num_inference_steps=steps,
        latents=noise,
        output_type="latent",
        max_sequence_length=TOKENS,
    )
    schedule = adapter.schedule(steps, SIZE)
    assert list(schedule.sigmas) == pipeline.scheduler.sigmas.tolist()
    assert torch.equal(torch.tensor(schedule.sigmas[:-1]) * schedule.timestep_scale, pipeline.scheduler.timesteps)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_ode_sampling_gives_the_stock_latents_and_pixels(both, guidance):
    pipeline, adapter = both
    noise = torch.randn(len(PROMPTS), *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(1))
    arguments = {
        "prompt": PROMPTS,
        "negative_prompt": [NEGATIVE] * len(PROMPTS),
        "height": SIZE.height,
        "width": SIZE.width,
        "num_inference_steps": STEPS,
        "true_cfg_scale": guidance,
        "guidance_scale": TOLD,
        "max_sequence_length": TOKENS,
    }
    expected = pipeline(**arguments, latents=pack(noise), output_type="latent").images
    latents = sample_ode(adapter, PROMPTS, noise, SIZE, steps=STEPS, guidance=guidance, negative=NEGATIVE)
    assert (expected - pack(noise)).abs().max() > 0.1
    torch.testing.assert_close(pack(latents), expected, atol=1e-5, rtol=1e-5)
    pictures = pipeline(**arguments, latents=pack(noise), output_type="pil").images
    for picture, artifacts in zip(pictures, adapter.decode(latents, SIZE), strict=True):
        assert_same_picture(artifacts, picture)
