"""Input images, batches of different sizes, options and refusals of the Qwen-Image-Edit adapter."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ArtifactError, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Extent
from omni_portable.models.qwen_image.layout import LAYOUT
from omni_portable.models.qwen_image_edit import SPEC, QwenImageEditOptions
from omni_portable.models.qwen_image_edit.adapter import QwenImageEditAdapter
from omni_portable.models.qwen_image_edit.pictures import resized
from omni_portable.models.qwen_image_edit.text import EDIT
from tests.support.families import assert_round_trip
from tests.support.ode import sample_ode

SIZE = Extent(16, 24)


def test_the_spec_imports_without_torch():
    code = "import sys; from omni_portable.models.qwen_image_edit import SPEC; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registered_spec_loads_an_adapter(load_edit):
    assert registry.spec("model", "qwen_image_edit") is SPEC
    assert SPEC.load() is QwenImageEditAdapter
    assert isinstance(load_edit(), DiffusionAdapter)


@pytest.mark.parametrize("name", ["vae_pixels", "condition_pixels"])
def test_options_are_checked(name, load_edit):
    with pytest.raises(ConfigError, match=f"{name} is 1000"):
        QwenImageEditOptions(**{name: 1000})
    with pytest.raises(ConfigError, match="must be QwenImageEditOptions"):
        load_edit(options=registry.NoOptions(), components=())


def test_the_template_s_start_is_what_is_dropped(load_edit):
    tokenizer = load_edit(components=("text_encoder",))._text._tokenizer
    assert len(tokenizer(EDIT.start).input_ids) == EDIT.dropped


@pytest.mark.parametrize(
    ("height", "width", "area", "expected"),
    [
        (40, 40, 64 * 64, (64, 64)),
        (32, 64, 64 * 64, (32, 96)),
        (64, 32, 1024 * 1024, (1440, 736)),
        (9, 90, 1024, (32, 96)),
    ],
)
def test_images_are_brought_to_an_area_and_keep_their_ratio(picture, height, width, area, expected):
    assert tuple(resized(picture(height, width).data, area).shape) == (3, *expected)


def test_a_conditioning_holds_all_images(load_edit, picture):
    adapter = load_edit()
    media = {"image": picture(40, 40), "image_2": picture(32, 64, 1, "image_2")}
    (encoded,) = adapter.encode(["x"], [media], SIZE)
    assert encoded["image_grids"].tolist() == [[16, 16], [8, 24]]
    assert encoded["image_tokens"].shape == (16 * 16 + 8 * 24, 16)
    swapped = {"image": media["image_2"], "image_2": media["image"]}
    (other,) = adapter.encode(["x"], [swapped], SIZE)
    assert other["image_grids"].tolist() == [[8, 24], [16, 16]]
    assert torch.equal(other["image_tokens"][: 8 * 24], encoded["image_tokens"][16 * 16 :])


def test_the_image_and_the_instruction_both_matter(load_edit, picture):
    adapter = load_edit()
    noise = torch.randn(1, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(0)).repeat(3, 1, 1, 1)
    first, second = {"image": picture(seed=1)}, {"image": picture(seed=2)}
    latents = sample_ode(adapter, ["a", "a", "bcd"], noise, SIZE, steps=2, media=[first, second, first])
    assert (latents[0] - latents[1]).abs().max() > 1e-3
    assert (latents[0] - latents[2]).abs().max() > 1e-5


@pytest.mark.parametrize("variant", ["plus", "2511"])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_rows_with_images_of_different_number_and_size_share_a_batch(load_edit, picture, variant, guidance):
    adapter = load_edit(variant)
    media = [
        {"image": picture(40, 40, 1)},
        {"image": picture(32, 64, 2), "image_2": picture(40, 40, 3, "image_2")},
        {"image": picture(40, 40, 4)},
    ]
    prompts = ["one", "another one", "two"]
    noise = torch.randn(3, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(2))
    together = sample_ode(adapter, prompts, noise, SIZE, steps=3, guidance=guidance, media=media)
    for row in range(3):
        alone = sample_ode(
            adapter, [prompts[row]], noise[row : row + 1], SIZE, steps=3, guidance=guidance, media=[media[row]]
        )
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)


def test_gradients_flow_through_a_batch_of_several_sizes(load_edit, picture):
    adapter = load_edit(components=("transformer", "text_encoder", "vae"))
    media = [{"image": picture(40, 40, 1)}, {"image": picture(32, 64, 2)}]
    batch = adapter.collate(adapter.encode(["a", "b"], media, SIZE))
    latents = torch.randn(2, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(0))
    adapter.velocity(latents, torch.tensor([900.0, 300.0]), batch, 1.0).square().sum().backward()
    assert all(p.grad is not None for name, p in adapter.trainable_tensors() if "proj_out" in name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "changes a given image, but the prompt has none"),
        (["picture"], "takes no input medium 'picture'"),
        (["image_2"], "has the input image 'image_2', but no 'image'"),
        (["image", "image_3"], "but no 'image_2'"),
    ],
)
def test_input_images_are_checked(load_edit, picture, names, message):
    adapter = load_edit()
    with pytest.raises(ArtifactError, match=message):
        adapter.encode(["x"], [{name: picture(name=name) for name in names}], SIZE)


def test_media_that_do_not_fit_the_prompts(load_edit, picture):
    adapter = load_edit()
    with pytest.raises(ArtifactError, match="but the prompt has none"):
        adapter.encode(["x"], None, SIZE)
    with pytest.raises(ArtifactError, match="2 prompts came with the media of 1"):
        adapter.encode(["x", "y"], [{"image": picture()}], SIZE)
    video = MediaArtifact("image", "video", torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "TCHW", fps=1.0)
    with pytest.raises(ArtifactError, match="needs 'image' to be image, but it is video"):
        adapter.encode(["x"], [{"image": video}], SIZE)


def test_the_first_release_takes_one_image(load_edit, picture):
    adapter = load_edit("first")
    two = {"image": picture(), "image_2": picture(name="image_2")}
    with pytest.raises(ArtifactError, match="takes 1 image, but the prompt has 2"):
        adapter.encode(["x"], [two], SIZE)


@pytest.mark.parametrize("missing", ["text_encoder", "vae"])
def test_encoding_needs_both_readers(load_edit, picture, missing):
    parts = tuple({"text_encoder", "vae"} - {missing})
    with pytest.raises(ModelError, match=f"the {missing} of .* was not loaded"):
        load_edit(components=parts).encode(["x"], [{"image": picture()}], SIZE)


def test_attention_requests_come_from_the_config_files(edit_folders):
    assert QwenImageEditAdapter.attention_requests(edit_folders["plus"], "bfloat16", training=True) == [
        AttentionRequest("transformer", "bfloat16", 16, mask="padding", backward=True),
        AttentionRequest("text_encoder", "bfloat16", 8, causal=True, grouped_query=True),
        AttentionRequest("vae", "bfloat16", 8),
        AttentionRequest("text_encoder", "bfloat16", 8),
    ]


def test_the_fused_layout_and_back_is_bit_exact(load_edit):
    assert_round_trip(load_edit(components=("transformer",)), LAYOUT, [r"transformer_blocks\.1\.attn\.to_out\.bias"])
