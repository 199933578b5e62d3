"""The adapter against diffusers' QwenImagePipeline on the same folder."""

from __future__ import annotations

import pytest
import torch
from diffusers import QwenImagePipeline

from omni_portable.contracts.rollout import Extent
from omni_portable.models.packing import pack
from omni_portable.models.qwen_image import QwenImageOptions
from tests.support.ode import assert_same_picture, sample_ode

PROMPTS = ["the text R7", "a sign that says hello, longer than the model reads of it by far", ""]
NEGATIVE = "blurry and dark"
TOKENS = 24
SIZE = Extent(16, 24)
STEPS = 4


@pytest.fixture(scope="module", params=["small", "deep"])
def both(request, qwen_folders, load_qwen):
    """(stock pipeline, adapter) on one folder."""
    pipeline = QwenImagePipeline.from_pretrained(qwen_folders[request.param], dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, load_qwen(request.param, options=QwenImageOptions(max_sequence_length=TOKENS))


def test_prompt_embeddings_are_the_stock_ones(both):
    pipeline, adapter = both
    for prompt, encoded in zip(PROMPTS, adapter.encode(PROMPTS, None, SIZE), strict=True):
        with torch.no_grad():
            embeds, mask = pipeline.encode_prompt([prompt], max_sequence_length=TOKENS)
        assert mask is None
        assert torch.equal(encoded["prompt_embeds"], embeds[0])


def test_batched_stock_embeddings_agree_too(both):
    pipeline, adapter = both
    with torch.no_grad():
        embeds, mask = pipeline.encode_prompt(PROMPTS, max_sequence_length=TOKENS)
    batch = adapter.collate(adapter.encode(PROMPTS, None, SIZE))
    assert torch.equal(batch["prompt_mask"], mask.bool())
    torch.testing.assert_close(batch["prompt_embeds"], embeds, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("steps", [2, 4, 10])
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
        true_cfg_scale=1.0,
    )
    schedule = adapter.schedule(steps, SIZE)
    assert list(schedule.sigmas) == pipeline.scheduler.sigmas.tolist()
    assert torch.equal(
        torch.tensor(schedule.sigmas[:-1]) * schedule.timestep_scale, pipeline.scheduler.timesteps.float()
    )


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
        "max_sequence_length": TOKENS,
    }
    expected = pipeline(**arguments, latents=pack(noise), output_type="latent").images
    latents = sample_ode(adapter, PROMPTS, noise, SIZE, steps=STEPS, guidance=guidance, negative=NEGATIVE)
    assert (expected - pack(noise)).abs().max() > 0.1
    torch.testing.assert_close(pack(latents), expected, atol=1e-5, rtol=1e-5)
    pictures = pipeline(**arguments, latents=pack(noise), output_type="pil").images
    for picture, artifacts in zip(pictures, adapter.decode(latents, SIZE), strict=True):
        assert_same_picture(artifacts, picture)


def test_the_prompt_changes_the_picture(both):
    _, adapter = both
    noise = torch.randn(1, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(1)).repeat(2, 1, 1, 1)
    latents = sample_ode(adapter, ["one", "two"], noise, SIZE, steps=STEPS)
    assert (latents[0] - latents[1]).abs().max() > 1e-3


def test_padding_does_not_matter(both):
    _, adapter = both
    noise = torch.randn(3, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(2))
    together = sample_ode(adapter, PROMPTS, noise, SIZE, steps=STEPS, guidance=3.0)
    for row, prompt in enumerate(PROMPTS):
        alone = sample_ode(adapter, [prompt], noise[row : row + 1], SIZE, steps=STEPS, guidance=3.0)
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)
