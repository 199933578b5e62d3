"""The adapter against diffusers' edit pipelines on the same folder.

The stock pipelines are handed the image tokens' kinds, which they forget to hand to their text encoder with
transformers 5 (see `qwen_image_edit/text.py`), and small areas for input images in place of their constants.
"""

from __future__ import annotations

import diffusers.pipelines.qwenimage.pipeline_qwenimage_edit as first_module
import diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus as plus_module
import pytest
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageTransformer2DModel,
)
from PIL import Image
from transformers import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
)

from omni_portable.contracts.rollout import Extent
from omni_portable.models.packing import pack
from omni_portable.models.qwen_image_edit import QwenImageEditOptions
from tests.support.ode import assert_same_picture, sample_ode

PROMPT, NEGATIVE = "make the sky red", "blurry and dark"
SIZE = Extent(16, 24)
STEPS = 4
VAE, CONDITION = 64 * 64, 224 * 224


@pytest.fixture(scope="module")
def patched():
    patch = pytest.MonkeyPatch()
    own = first_module.calculate_dimensions
    patch.setattr(Qwen2VLProcessor, "check_argument_for_proper_class", lambda *arguments: None)
    patch.setattr(first_module, "calculate_dimensions", lambda area, ratio: own(CONDITION, ratio))
    patch.setattr(plus_module, "VAE_IMAGE_SIZE", VAE)
    patch.setattr(plus_module, "CONDITION_IMAGE_SIZE", CONDITION)
    yield
    patch.undo()


@pytest.fixture(scope="module", params=["first", "plus", "2511"])
def both(request, patched, edit_folders, load_edit):
    """(stock pipeline, adapter, number of input images) on one folder."""
    folder = edit_folders[request.param]
    single = request.param == "first"
    encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "text_encoder").eval()
    processor = Qwen2VLProcessor(
        Qwen2VLImageProcessorPil.from_pretrained(folder / "processor"),
        Qwen2Tokenizer.from_pretrained(folder / "tokenizer"),
        video_processor=None,
    )
    pipeline = (QwenImageEditPipeline if single else QwenImageEditPlusPipeline)(
        transformer=QwenImageTransformer2DModel.from_pretrained(folder / "transformer"),
        vae=AutoencoderKLQwenImage.from_pretrained(folder / "vae"),
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        text_encoder=encoder,
        tokenizer=processor.tokenizer,
        processor=processor,
    )
    pipeline.set_progress_bar_config(disable=True)
    forward = encoder.forward
    encoder.forward = lambda input_ids, **rest: forward(
        input_ids=input_ids, mm_token_type_ids=(input_ids == encoder.config.image_token_id).int(), **rest
    )
    area = CONDITION if single else VAE
    options = QwenImageEditOptions(vae_pixels=area, condition_pixels=CONDITION)
    return pipeline, load_edit(request.param, options=options), 1 if single else 2


def shown(count, picture):
    named = {name: picture(64, 64, seed, name) for seed, name in enumerate(("image", "image_2")[:count])}
    images = [Image.fromarray(artifact.data.permute(1, 2, 0).numpy()) for artifact in named.values()]
    return named, images if count > 1 else images[0]


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_ode_sampling_gives_the_stock_latents_and_pixels(both, picture, guidance):
    pipeline, adapter, count = both
    named, images = shown(count, picture)
    noise = torch.randn(1, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(1))
    arguments = {
        "image": images,
        "prompt": [PROMPT],
        "negative_prompt": [NEGATIVE],
        "height": SIZE.height,
        "width": SIZE.width,
        "num_inference_steps": STEPS,
        "true_cfg_scale": guidance,
    }
    expected = pipeline(**arguments, latents=pack(noise), output_type="latent").images
    latents = sample_ode(
        adapter, [PROMPT], noise, SIZE, steps=STEPS, guidance=guidance, negative=NEGATIVE, media=[named]
    )
    assert (expected - pack(noise)).abs().max() > 0.1
    torch.testing.assert_close(pack(latents), expected, atol=1e-5, rtol=1e-5)
    (stock,) = pipeline(**arguments, latents=pack(noise), output_type="pil").images
    assert_same_picture(adapter.decode(latents, SIZE)[0], stock)
    schedule = adapter.schedule(STEPS, SIZE)
    assert list(schedule.sigmas) == pipeline.scheduler.sigmas.tolist()


def test_instructions_and_images_are_encoded_as_the_stock_pipeline_does(both, picture):
    pipeline, adapter, count = both
    named, images = shown(count, picture)
    (encoded,) = adapter.encode([PROMPT], [named], SIZE)
    area = (224, 224)
    read = [image.resize(area, Image.Resampling.LANCZOS) for image in (images if count > 1 else [images])]
    with torch.no_grad():
        embeds, mask = pipeline.encode_prompt([PROMPT], image=read if count > 1 else read[0])
    assert mask is None
    torch.testing.assert_close(encoded["prompt_embeds"], embeds[0], atol=1e-5, rtol=1e-5)


def test_an_image_that_the_vision_tower_resizes_is_read_almost_as_in_the_stock_pipeline(both, picture):
    pipeline, adapter, count = both
    image = picture(96, 128)
    stock = Image.fromarray(image.data.permute(1, 2, 0).numpy())
    with torch.no_grad():
        embeds, _ = pipeline.encode_prompt([PROMPT], image=[stock] if count > 1 else stock)
    own = adapter._text.encode(PROMPT, [image.data])
    assert own.shape == embeds[0].shape
    torch.testing.assert_close(own, embeds[0], atol=0.02, rtol=0.02)
