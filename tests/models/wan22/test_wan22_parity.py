"""The adapter against diffusers' WanPipeline and WanImageToVideoPipeline on the same folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanImageToVideoPipeline, WanPipeline

from tests.models.wan22.conftest import SIZE, TOKENS
from tests.support.ode import sample_ode

PROMPTS = ["a cat &amp; a dog", "a ship in a storm, longer than the model reads of it", ""]
NEGATIVE = "blurred"
STEPS = 6


class Given(FlowMatchEulerDiscreteScheduler):
    """Euler steps on sigmas that are given, whatever the pipeline asks for."""

    given: list[float]

    def set_timesteps(self, num_inference_steps=None, device=None):
        super().set_timesteps(sigmas=self.given, device=device)


def stock(folder, adapter, steps=STEPS, from_image=False):
    kind = WanImageToVideoPipeline if adapter.folder.from_image or from_image else WanPipeline
    pipeline = kind.from_pretrained(folder, dtype=torch.float32)
    pipeline.scheduler = Given(shift=1.0)
    pipeline.scheduler.given = list(adapter.schedule(steps, SIZE).sigmas[:-1])
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def noise_for(adapter, rows):
    shape = adapter.latent_shape(SIZE)
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1))


def arguments(rows, guidance, **more):
    return {
        "prompt": PROMPTS[:rows],
        "negative_prompt": [NEGATIVE] * rows,
        "height": SIZE.height,
        "width": SIZE.width,
        "num_frames": SIZE.num_frames,
        "num_inference_steps": STEPS,
        "guidance_scale": guidance,
        "max_sequence_length": TOKENS,
        **more,
    }


@pytest.fixture(scope="module")
def adapters(load_wan):
    return {name: load_wan(name) for name in ("t2v", "i2v", "ti2v")}


def test_prompt_embeddings_are_the_stock_ones(wan_folders, adapters):
    pipeline = stock(wan_folders["t2v"], adapters["t2v"])
    for prompt, encoded in zip(PROMPTS, adapters["t2v"].encode(PROMPTS, None, SIZE), strict=True):
        with torch.no_grad():
            embeds, _ = pipeline.encode_prompt([prompt], None, False, max_sequence_length=TOKENS)
        assert torch.equal(encoded["prompt_embeds"], embeds[0])


@pytest.mark.parametrize("guidance", [1.0, 5.0])
@pytest.mark.parametrize("variant", ["t2v", "ti2v"])
def test_text_to_video_gives_the_stock_latents_and_frames(wan_folders, adapters, variant, guidance):
    adapter = adapters[variant]
    pipeline, noise = stock(wan_folders[variant], adapter), noise_for(adapter, len(PROMPTS))
    given = arguments(len(PROMPTS), guidance)
    expected = pipeline(**given, latents=noise.clone(), output_type="latent").frames
    latents = sample_ode(adapter, PROMPTS, noise, SIZE, steps=STEPS, guidance=guidance, negative=NEGATIVE)
    assert (expected - noise).abs().max() > 0.1
    torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)
    videos = pipeline(**given, latents=noise.clone(), output_type="np").frames
    for video, artifacts in zip(videos, adapter.decode(latents, SIZE), strict=True):
        found = artifacts["video"]
        assert (found.layout, found.fps, tuple(found.data.shape)) == ("TCHW", 8.0, (9, 3, 32, 48))
        difference = found.data.permute(0, 2, 3, 1).numpy() - video * 255
        assert np.abs(difference).max() < 0.51


def test_both_experts_take_part(adapters):
    adapter, calls = adapters["t2v"], []
    hooks = [
        expert.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
        for name, expert in adapter.transformer.named_children()
    ]
    sample_ode(adapter, PROMPTS[:1], noise_for(adapter, 1), SIZE, steps=STEPS)
    for hook in hooks:
        hook.remove()
    sigmas = adapter.schedule(STEPS, SIZE).sigmas[:-1]
    assert calls == ["transformer" if s >= 0.875 else "transformer_2" for s in sigmas]
    assert len(set(calls)) == 2


def test_the_low_noise_expert_may_have_its_own_guidance_scale(wan_folders, load_wan):
    adapter = load_wan("t2v", low_noise_guidance_scale=2.0)
    pipeline, noise = stock(wan_folders["t2v"], adapter), noise_for(adapter, 2)
    expected = pipeline(**arguments(2, 4.0, guidance_scale_2=2.0), latents=noise.clone(), output_type="latent").frames
    latents = sample_ode(adapter, PROMPTS[:2], noise, SIZE, steps=STEPS, guidance=4.0, negative=NEGATIVE)
    torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("variant", "given"),
    [("i2v", ("first_frame",)), ("i2v", ("first_frame", "last_frame")), ("ti2v", ("first_frame",))],
)
def test_image_to_video_gives_the_stock_latents(wan_folders, load_wan, adapters, frames, variant, given):
    adapter = adapters[variant]
    pipeline, noise = stock(wan_folders[variant], adapter, from_image=True), noise_for(adapter, 1)
    pixels = {name: (frames[name].data.float() / 255).unsqueeze(0) for name in given}
    text = load_wan("ti2v" if variant == "ti2v" else "t2v").encode([PROMPTS[0], NEGATIVE], None, SIZE)
    # the pipeline would need one more package to encode prompts
    settings = arguments(1, 4.0) | {"prompt": None, "negative_prompt": None}
    expected = pipeline(
        **settings,
        prompt_embeds=text[0]["prompt_embeds"].unsqueeze(0),
        negative_prompt_embeds=text[1]["prompt_embeds"].unsqueeze(0),
        image=pixels["first_frame"],
        last_image=pixels.get("last_frame"),
        latents=noise.clone(),
        output_type="latent",
    ).frames
    media = [{name: frames[name] for name in given}]
    latents = sample_ode(adapter, PROMPTS[:1], noise, SIZE, steps=STEPS, guidance=4.0, negative=NEGATIVE, media=media)
    assert (expected - noise).abs().max() > 0.1
    torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)


def test_a_first_frame_is_what_the_video_begins_with(adapters, frames):
    adapter = adapters["ti2v"]
    media = [{"first_frame": frames["first_frame"]}, {}]
    noise = noise_for(adapter, 2)
    given, free = sample_ode(adapter, PROMPTS[:2], noise, SIZE, steps=STEPS, media=media)
    (encoded, _) = adapter.encode(PROMPTS[:2], media, SIZE)
    torch.testing.assert_close(given[:, :1], encoded["first_frame"], atol=1e-5, rtol=1e-5)
    alone = sample_ode(adapter, PROMPTS[1:2], noise[1:], SIZE, steps=STEPS)
    torch.testing.assert_close(free, alone[0], atol=1e-5, rtol=1e-5)
