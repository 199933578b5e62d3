"""Parts, the guidance input, layouts and refusals of the FLUX adapter."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import AttentionUnavailable, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Extent
from omni_portable.models.flux import SPEC, FluxOptions
from omni_portable.models.flux.adapter import FluxAdapter, token_positions
from omni_portable.models.fused_layout import JOINT_ATTENTION
from omni_portable.models.lora import inject_lora
from tests.support.families import assert_round_trip, choice, operators

SIZE = Extent(16, 24)


def batch(adapter, rows=2):
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(rows, *adapter.latent_shape(SIZE), generator=generator)
    conditioning = {
        "prompt_embeds": torch.randn(rows, 12, 40, generator=generator),
        "pooled_prompt_embeds": torch.randn(rows, 16, generator=generator),
    }
    return latents, torch.linspace(900, 300, rows), conditioning


def test_the_spec_imports_without_torch():
    code = "import sys; from omni_portable.models.flux import SPEC; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registered_spec_loads_an_adapter(load_flux):
    assert registry.spec("model", "flux") is SPEC
    assert SPEC.load() is FluxAdapter
    assert isinstance(load_flux(), DiffusionAdapter)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sequence_length": 0}, "is 0"),
        ({"max_sequence_length": 513}, "is 513"),
        ({"guidance_embedding": -1.0}, "is -1.0"),
        ({"guidance_embedding": float("nan")}, "is nan"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        FluxOptions(**options)


def test_only_the_parts_asked_for_are_loaded(load_flux):
    actor = load_flux(components=("transformer",))
    assert set(actor.attention_in_use) == {"transformer"}
    for call, part in (
        (lambda: actor.encode(["x"], None, SIZE), "text_encoder"),
        (lambda: actor.decode(torch.ones(1), SIZE), "vae"),
    ):
        with pytest.raises(ModelError, match=f"the {part} of .* was not loaded"):
            call()
    scorer = load_flux(components=("vae", "text_encoder"))
    assert scorer.attention_in_use == {"text_encoder": "sdpa", "text_encoder_2": "eager", "vae": "native"}
    frozen = [*scorer._vae.parameters(), *scorer._text.clip.model.parameters(), *scorer._text.t5.model.parameters()]
    assert not any(parameter.requires_grad for parameter in frozen)


def test_media_and_other_options_are_refused(load_flux):
    with pytest.raises(ConfigError, match="takes no input media"):
        load_flux(components=("text_encoder",)).encode(["x"], [{"image": object()}], SIZE)
    with pytest.raises(ConfigError, match="must be FluxOptions"):
        load_flux(options=registry.NoOptions())


def test_sizes_that_cannot_be_drawn_are_refused(load_flux):
    adapter = load_flux(components=())
    assert adapter.latent_shape(Extent(16, 64)) == (4, 8, 32)
    with pytest.raises(ConfigError, match=r"multiples of 4 pixels\n.*rollout.height to 16"):
        adapter.latent_shape(Extent(18, 16))
    with pytest.raises(ConfigError, match="rollout.width to 4"):
        adapter.schedule(4, Extent(16, 2))


def test_the_model_is_told_of_its_guidance_where_it_listens(load_flux):
    told = [load_flux(options=FluxOptions(guidance_embedding=value)) for value in (1.0, 3.5)]
    deaf = [load_flux("schnell", options=FluxOptions(guidance_embedding=value)) for value in (1.0, 3.5)]
    for pair, differ in ((told, True), (deaf, False)):
        arguments = batch(pair[0])
        with torch.no_grad():
            first, second = (adapter.velocity(*arguments, 1.0) for adapter in pair)
        assert torch.equal(first, second) != differ


def test_guidance_is_one_forward_of_negative_and_positive(load_flux):
    adapter = load_flux(components=("transformer",))
    latents, timesteps, positive = batch(adapter)
    negative = {name: tensor.flip(0) * 0.5 for name, tensor in positive.items()}
    calls = []
    adapter.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["guidance"].tolist()), with_kwargs=True
    )
    with torch.no_grad():
        guided = adapter.velocity(latents, timesteps, positive, 3.0, negative)
        assert calls == [[3.5] * 4]
        v_pos = adapter.velocity(latents, timesteps, positive, 1.0)
        v_neg = adapter.velocity(latents, timesteps, negative, 1.0)
    torch.testing.assert_close(guided, v_neg + 3.0 * (v_pos - v_neg), atol=1e-5, rtol=1e-5)
    with pytest.raises(ModelError, match=r"guidance_scale 3.0 needs the negative"):
        adapter.velocity(latents, timesteps, positive, 3.0)


def test_positions_count_rows_and_columns():
    positions = token_positions(2, 3, torch.device("cpu"))
    assert positions.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 1, 2]]


def test_velocity_is_fp32_in_any_dtype(load_flux):
    adapter = load_flux(dtype=torch.bfloat16)
    latents, timesteps, conditioning = batch(adapter)
    velocity = adapter.velocity(latents, timesteps, conditioning, 1.0)
    assert (velocity.dtype, velocity.shape) == (torch.float32, latents.shape)


def test_the_chosen_kernel_is_the_one_that_runs(load_flux):
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    native = load_flux()
    math = load_flux(
        attention={
            "transformer": choice("transformer", "_native_math"),
            "text_encoder": choice("text_encoder", "eager", "transformers"),
            "vae": choice("vae", "_native_math"),
        }
    )
    arguments = batch(native)
    assert fused in operators(lambda: native.velocity(*arguments, 1.0))
    assert fused not in operators(lambda: math.velocity(*arguments, 1.0))
    for part in (lambda a: a.encode(["abc"], None, SIZE), lambda a: a.decode(arguments[0], SIZE)):
        assert fused in operators(lambda part=part: part(native))
        assert fused not in operators(lambda part=part: part(math))
    with pytest.raises(AttentionUnavailable, match="'flash' for the transformer"):
        load_flux(attention={"transformer": choice("transformer", "flash")})


def test_attention_requests_come_from_the_config_files(flux_folders):
    assert FluxAdapter.attention_requests(flux_folders["dev"], "bfloat16", training=True) == [
        AttentionRequest("transformer", "bfloat16", 16, backward=True),
        AttentionRequest("text_encoder", "bfloat16", 8, causal=True),
        AttentionRequest("vae", "bfloat16", 8),
    ]


def test_published_lora_targets_all_match(load_flux):
    adapter = load_flux(components=("transformer",))
    info = inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    # 12 layers in each of 2 joint blocks, 3 projections in each of 2 single ones
    assert info.expected_modules == 2 * 12 + 2 * 3


def test_the_fused_layout_and_back_is_bit_exact(load_flux):
    fused = [
        r"transformer_blocks\.\d\.attn\.to_qkv\.weight",
        r"transformer_blocks\.\d\.attn\.add_kv_proj\.bias",
        r"single_transformer_blocks\.\d\.attn\.to_qkv\.bias",
        r"transformer_blocks\.\d\.attn\.to_out\.0\.weight",
    ]
    assert_round_trip(load_flux(components=("transformer",)), JOINT_ATTENTION, fused)


def test_media_are_encoded_as_samples_are(load_flux):
    adapter = load_flux(components=("vae",))
    pixels = torch.randint(0, 256, (3, 16, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    latents = adapter.encode_media({"image": MediaArtifact("image", "image", pixels, "CHW")}, SIZE)
    assert (latents.shape, latents.dtype) == (adapter.latent_shape(SIZE), torch.float32)
    config = adapter._vae.config
    with torch.no_grad():
        expected = adapter._vae.encode(pixels[None] / 127.5 - 1).latent_dist.mean[0]
    torch.testing.assert_close(latents / config.scaling_factor + config.shift_factor, expected, atol=1e-5, rtol=1e-5)
