"""Parts, guidance, padding, layouts and refusals of the Qwen-Image adapter."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ArtifactError, AttentionUnavailable, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Extent
from omni_portable.models.lora import inject_lora
from omni_portable.models.packing import pack
from omni_portable.models.qwen_image import SPEC, QwenImageOptions
from omni_portable.models.qwen_image.adapter import QwenImageAdapter
from omni_portable.models.qwen_image.layout import LAYOUT
from omni_portable.models.qwen_image.text import TEXT_TO_IMAGE
from tests.support.families import assert_round_trip, choice, operators

SIZE = Extent(16, 24)
PROMPTS = ["a", "something longer"]


def batch(adapter, prompts=PROMPTS):
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(len(prompts), *adapter.latent_shape(SIZE), generator=generator)
    return latents, torch.linspace(900, 300, len(prompts)), adapter.collate(adapter.encode(prompts, None, SIZE))


def test_the_spec_imports_without_torch():
    code = "import sys; from omni_portable.models.qwen_image import SPEC; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registered_spec_loads_an_adapter(load_qwen):
    assert registry.spec("model", "qwen_image") is SPEC
    assert SPEC.load() is QwenImageAdapter
    assert isinstance(load_qwen(), DiffusionAdapter)


@pytest.mark.parametrize("tokens", [0, 1025])
def test_options_are_checked(tokens, load_qwen):
    with pytest.raises(ConfigError, match=str(tokens)):
        QwenImageOptions(max_sequence_length=tokens)
    with pytest.raises(ConfigError, match="must be QwenImageOptions"):
        load_qwen(options=registry.NoOptions(), components=())


def test_the_template_s_start_is_what_is_dropped(load_qwen):
    tokenizer = load_qwen(components=("text_encoder",))._text._tokenizer
    assert len(tokenizer(TEXT_TO_IMAGE.start).input_ids) == TEXT_TO_IMAGE.dropped


def test_a_truncated_prompt_is_reported(load_qwen, caplog):
    adapter = load_qwen(components=("text_encoder",), options=QwenImageOptions(max_sequence_length=9))
    (short,) = adapter.encode(["a b"], None, SIZE)
    assert not caplog.text
    (cut,) = adapter.encode(["xyz" * 8], None, SIZE)
    assert cut["prompt_embeds"].shape[0] == 9 > short["prompt_embeds"].shape[0]
    assert "text_encoder reads 9 of the 29 tokens" in caplog.text


def test_an_embedding_does_not_depend_on_its_batch(load_qwen):
    adapter = load_qwen(components=("text_encoder",))
    alone, together = adapter.encode(["abc"], None, SIZE)[0], adapter.encode(["longer", "abc"], None, SIZE)[1]
    assert torch.equal(alone["prompt_embeds"], together["prompt_embeds"])


def test_a_mask_comes_only_with_padding(load_qwen):
    adapter = load_qwen(components=("text_encoder",))
    assert set(adapter.collate(adapter.encode(["abc", "xyz"], None, SIZE))) == {"prompt_embeds"}
    mask = adapter.collate(adapter.encode(["abc", "xyz12"], None, SIZE))["prompt_mask"]
    assert mask.dtype == torch.bool
    assert mask.sum(dim=1).tolist() == [mask.shape[1] - 2, mask.shape[1]]


def test_only_the_parts_asked_for_are_loaded(load_qwen):
    actor = load_qwen(components=("transformer",))
    assert set(actor.attention_in_use) == {"transformer"}
    assert next(iter(actor.trainable_tensors()))[1].requires_grad
    for call, part in (
        (lambda: actor.encode(["x"], None, SIZE), "text_encoder"),
        (lambda: actor.decode(torch.ones(1), SIZE), "vae"),
        (lambda: actor.encode_media({"image": MediaArtifact("image", "image", pixels(), "CHW")}, SIZE), "vae"),
    ):
        with pytest.raises(ModelError, match=f"the {part} of .* was not loaded"):
            call()
    scorer = load_qwen(components=("vae", "text_encoder"))
    with pytest.raises(ModelError, match="the transformer of"):
        _ = scorer.transformer
    assert not any(p.requires_grad for p in [*scorer._vae.parameters(), *scorer._text.model.parameters()])
    with pytest.raises(ConfigError, match="no component 'unet'"):
        load_qwen(components=("unet",))


def test_media_are_refused(load_qwen):
    with pytest.raises(ConfigError, match="takes no input media"):
        load_qwen(components=("text_encoder",)).encode(["x"], [{"image": object()}], SIZE)


@pytest.mark.parametrize(("height", "width", "message"), [(18, 16, "rollout.height to 16"), (16, 2, "to 4")])
def test_sizes_that_cannot_be_drawn_are_refused(load_qwen, height, width, message):
    adapter = load_qwen(components=())
    assert adapter.latent_shape(Extent(16, 64)) == (4, 8, 32)
    assert adapter.latent_streams(Extent(16, 64)) == {"latents": (0, 4 * 8 * 32)}
    for call in (adapter.latent_shape, lambda extent: adapter.schedule(4, extent)):
        with pytest.raises(ConfigError, match=message):
            call(Extent(height, width))
    with pytest.raises(ConfigError, match="draws single images"):
        adapter.latent_shape(Extent(16, 16, num_frames=5))


def test_guidance_is_one_forward_and_keeps_the_norm_of_each_token(load_qwen):
    adapter = load_qwen()
    latents, timesteps, positive = batch(adapter)
    negative = adapter.collate(adapter.encode(["blurry, dark, empty", ""], None, SIZE))
    calls = []
    adapter.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["encoder_hidden_states"].shape[0]), with_kwargs=True
    )
    with torch.no_grad():
        guided = adapter.velocity(latents, timesteps, positive, 3.0, negative)
        assert calls == [4]
        v_pos = adapter.velocity(latents, timesteps, positive, 1.0)
        v_neg = adapter.velocity(latents, timesteps, negative, 1.0)
    torch.testing.assert_close(pack(guided).norm(dim=-1), pack(v_pos).norm(dim=-1), atol=1e-5, rtol=1e-5)
    direction = torch.nn.functional.cosine_similarity(pack(guided), pack(v_neg + 3.0 * (v_pos - v_neg)), dim=-1)
    assert (direction - 1).abs().max() < 1e-5
    with pytest.raises(ModelError, match=r"guidance_scale 3.0 needs the negative"):
        adapter.velocity(latents, timesteps, positive, 3.0)


def test_velocity_is_fp32_in_any_dtype(load_qwen):
    adapter = load_qwen(dtype=torch.bfloat16)
    latents, timesteps, conditioning = batch(adapter)
    velocity = adapter.velocity(latents, timesteps, conditioning, 1.0)
    assert (velocity.dtype, velocity.shape) == (torch.float32, latents.shape)


def test_the_chosen_kernel_is_the_one_that_runs(load_qwen):
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    native = load_qwen(attention={"transformer": choice("transformer", "native")})
    math = load_qwen(
        attention={
            "transformer": choice("transformer", "_native_math"),
            "text_encoder": choice("text_encoder", "eager", "transformers"),
            "vae": choice("vae", "native"),
        }
    )
    arguments = batch(native, ["abc", "xyz"])
    assert fused in operators(lambda: native.velocity(*arguments, 1.0))
    assert fused not in operators(lambda: math.velocity(*arguments, 1.0))
    assert math.attention_in_use == {"transformer": "_native_math", "text_encoder": "eager", "vae": "native"}
    with torch.no_grad():
        pair = [adapter.velocity(*arguments, 1.0) for adapter in (native, math)]
    torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)
    assert fused in operators(lambda: native.encode(["abc"], None, SIZE))
    assert fused not in operators(lambda: math.encode(["abc"], None, SIZE))


@pytest.mark.parametrize(
    ("component", "name", "library", "message"),
    [
        ("transformer", "flash", "diffusers", "'flash' for the transformer"),
        ("vae", "_native_math", "diffusers", "AutoencoderKLQwenImage cannot use"),
        ("text_encoder", "native", "diffusers", "is a diffusers name"),
    ],
)
def test_kernels_that_cannot_be_used_stop_the_load(load_qwen, component, name, library, message):
    with pytest.raises(AttentionUnavailable, match=message):
        load_qwen(attention={component: choice(component, name, library)})


def test_attention_requests_come_from_the_config_files(qwen_folders):
    assert QwenImageAdapter.attention_requests(qwen_folders["small"], "bfloat16", training=True) == [
        AttentionRequest("transformer", "bfloat16", 16, mask="padding", backward=True),
        AttentionRequest("text_encoder", "bfloat16", 8, causal=True, grouped_query=True),
        AttentionRequest("vae", "bfloat16", 8),
    ]


def test_published_lora_targets_all_match(load_qwen):
    adapter = load_qwen(components=("transformer",))
    info = inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    assert info.expected_modules == 2 * 12


def test_the_fused_layout_and_back_is_bit_exact(load_qwen):
    prefix = r"transformer_blocks\.\d\.attn\."
    fused = [prefix + r"to_qkv\.weight", prefix + r"add_kv_proj\.bias", prefix + r"to_out\.weight"]
    assert_round_trip(load_qwen(components=("transformer",)), LAYOUT, fused)
    assert LAYOUT.rollout_name("a.attn.to_out.0.lora_B.weight") == ("a.attn.to_out.lora_B.weight", None)
    assert LAYOUT.rollout_name("a.attn.to_k.lora_A.weight") == ("a.attn.to_k.lora_A.weight", None)


def pixels(height=16, width=24):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def test_media_are_encoded_as_samples_are(load_qwen):
    adapter = load_qwen("deep", components=("vae",))
    image = MediaArtifact("image", "image", pixels(), "CHW")
    latents = adapter.encode_media({"image": image}, SIZE)
    assert (latents.shape, latents.dtype) == (adapter.latent_shape(SIZE), torch.float32)
    mean, std = (torch.tensor(adapter._vae.config[k])[:, None, None] for k in ("latents_mean", "latents_std"))
    with torch.no_grad():
        expected = adapter._vae.encode(pixels()[None, :, None] / 127.5 - 1).latent_dist.mean[0, :, 0]
    torch.testing.assert_close(latents * std + mean, expected, atol=1e-5, rtol=1e-5)
    assert adapter.decode(latents[None], SIZE)[0]["image"].data.shape == (3, 16, 24)
    with pytest.raises(ArtifactError, match="expected 16 x 16"):
        adapter.encode_media({"image": image}, Extent(16, 16))
    with pytest.raises(ArtifactError, match="'image'"):
        adapter.encode_media({}, SIZE)


def test_one_step_of_the_schedule_is_refused_where_its_end_is_stretched(load_qwen):
    with pytest.raises(ConfigError, match="does not fall strictly"), pytest.warns(RuntimeWarning):
        load_qwen(components=()).schedule(1, SIZE)
