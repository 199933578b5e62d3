"""Parts, kernels, layouts and refusals of the SD3 adapter."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionChoice, AttentionRequest
from omni_portable.contracts.errors import AttentionUnavailable, ConfigError, ModelError, WeightSyncError
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Extent
from omni_portable.models.lora import bound_lora_modules, inject_lora, lora_named_tensors
from omni_portable.models.sd3 import SPEC, SD3Options
from omni_portable.models.sd3.adapter import SD3Adapter
from omni_portable.models.sd3.layout import fuse, rollout_name
from omni_portable.models.weights import named_tensors

SIZE = Extent(16, 16)


def choice(component, actor, library="diffusers"):
    return AttentionChoice(component, "family", actor, library, actor, "torch")


def operators(function):
    """Names of the operators that a call runs."""
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return {event.key for event in profile.key_averages()}


def batch(adapter, rows=2):
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(rows, *adapter.latent_shape(Extent(16, 16)), generator=generator)
    width = adapter.folder.transformer["joint_attention_dim"]
    conditioning = {
        "prompt_embeds": torch.randn(rows, 12, width, generator=generator),
        "pooled_prompt_embeds": torch.randn(
            rows, adapter.folder.transformer["pooled_projection_dim"], generator=generator
        ),
    }
    return latents, torch.linspace(900, 300, rows), conditioning


def test_the_spec_imports_without_torch():
    code = "import sys; from omni_portable.models.sd3 import SPEC; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registered_spec_loads_an_adapter(load_tiny):
    assert registry.spec("model", "sd3") is SPEC
    assert SPEC.load() is SD3Adapter
    assert isinstance(load_tiny(), DiffusionAdapter)


@pytest.mark.parametrize("tokens", [0, 513])
def test_options_are_checked(tokens):
    with pytest.raises(ConfigError, match=str(tokens)):
        SD3Options(max_sequence_length=tokens)


@pytest.mark.parametrize(("variant", "clip_tokens"), [("clip", 16), ("t5", 20)])
def test_token_count_is_clip_plus_t5(load_tiny, variant, clip_tokens):
    adapter = load_tiny(variant, components=("text_encoder",), options=SD3Options(max_sequence_length=9))
    embeds = adapter.encode(["abc"], None, SIZE)[0]["prompt_embeds"]
    assert embeds.shape == (clip_tokens + 9, 40)
    assert bool((embeds[clip_tokens:] == 0).all()) == (variant == "clip")
    assert bool((embeds[:clip_tokens, 32:] == 0).all())


def test_an_embedding_does_not_depend_on_its_batch(load_tiny):
    adapter = load_tiny("t5", components=("text_encoder",))
    alone, together = adapter.encode(["abc"], None, SIZE)[0], adapter.encode(["longer prompt", "abc"], None, SIZE)[1]
    assert all(torch.equal(alone[name], together[name]) for name in alone)


def test_a_truncated_prompt_is_reported(load_tiny, caplog):
    load_tiny("clip", components=("text_encoder",)).encode(["a" * 30], None, SIZE)
    assert "text_encoder reads 16 of the 32 tokens" in caplog.text


def test_only_the_parts_asked_for_are_loaded(load_tiny):
    actor = load_tiny(components=("transformer",))
    assert set(actor.attention_in_use) == {"transformer"}
    assert next(iter(actor.trainable_tensors()))[1].requires_grad
    for call, part in (
        (lambda: actor.encode(["x"], None, SIZE), "text_encoder"),
        (lambda: actor.decode(torch.ones(1), SIZE), "vae"),
        (lambda: actor.encode_media({}, SIZE), "vae"),
    ):
        with pytest.raises(ModelError, match=f"the {part} of .* was not loaded"):
            call()
    scorer = load_tiny(components=("vae", "text_encoder"))
    with pytest.raises(ModelError, match="the transformer of"):
        _ = scorer.transformer
    frozen = [*scorer._vae.parameters(), *scorer._text.models["text_encoder"].parameters()]
    assert not any(parameter.requires_grad for parameter in frozen)
    with pytest.raises(ConfigError, match="no component 'unet'"):
        load_tiny(components=("unet",))


def test_media_and_other_options_are_refused(load_tiny):
    adapter = load_tiny(components=("text_encoder",))
    assert adapter.encode([], None, SIZE) == []
    with pytest.raises(ConfigError, match="takes no input media"):
        adapter.encode(["x"], [{"image": object()}], SIZE)
    with pytest.raises(ConfigError, match="must be SD3Options"):
        load_tiny(options=registry.NoOptions())


def test_conditionings_of_different_lengths_are_not_stacked(load_tiny):
    adapter = load_tiny(components=("text_encoder",))
    short = load_tiny(components=("text_encoder",), options=SD3Options(max_sequence_length=4))
    with pytest.raises(ModelError, match="different shapes"):
        adapter.collate([*adapter.encode(["x"], None, SIZE), *short.encode(["x"], None, SIZE)])


@pytest.mark.parametrize(("height", "width", "message"), [(18, 16, "rollout.height to 16"), (16, 68, "to 64")])
def test_sizes_that_cannot_be_drawn_are_refused(load_tiny, height, width, message):
    adapter = load_tiny(components=())
    assert adapter.latent_shape(Extent(16, 64)) == (4, 8, 32)
    with pytest.raises(ConfigError, match=message):
        adapter.latent_shape(Extent(height, width))
    with pytest.raises(ConfigError, match=message):
        adapter.schedule(4, Extent(height, width))


def test_initial_latents_are_the_noise(load_tiny):
    noise = torch.randn(2, 4, 8, 8)
    assert torch.equal(load_tiny(components=()).initial_latents([None, None], noise), noise)


def test_guidance_is_one_forward_of_negative_and_positive(load_tiny):
    adapter = load_tiny(components=("transformer",))
    latents, timesteps, positive = batch(adapter)
    negative = {name: tensor.flip(0) * 0.5 for name, tensor in positive.items()}
    calls = []
    adapter.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(kwargs["encoder_hidden_states"]), with_kwargs=True
    )
    with torch.no_grad():
        guided = adapter.velocity(latents, timesteps, positive, 3.0, negative)
        assert len(calls) == 1
        assert torch.equal(calls[0], torch.cat([negative["prompt_embeds"], positive["prompt_embeds"]]))
        v_pos = adapter.velocity(latents, timesteps, positive, 1.0)
        v_neg = adapter.velocity(latents, timesteps, negative, 1.0)
    torch.testing.assert_close(guided, v_neg + 3.0 * (v_pos - v_neg), atol=1e-5, rtol=1e-5)
    with pytest.raises(ModelError, match=r"guidance_scale 3.0 needs the negative"):
        adapter.velocity(latents, timesteps, positive, 3.0)


def test_velocity_is_fp32_in_any_dtype(load_tiny):
    adapter = load_tiny(components=("transformer",), dtype=torch.bfloat16)
    latents, timesteps, conditioning = batch(adapter)
    velocity = adapter.velocity(latents, timesteps, conditioning, 1.0)
    assert velocity.dtype == torch.float32
    assert velocity.shape == latents.shape


@pytest.mark.parametrize("variant", ["clip", "sd35"])
def test_our_attention_equals_diffusers_own(load_tiny, variant):
    from diffusers.models.attention_processor import JointAttnProcessor2_0

    adapter = load_tiny(variant, components=("transformer",))
    arguments = batch(adapter)
    with torch.no_grad():
        ours = adapter.velocity(*arguments, 1.0)
        adapter.transformer.set_attn_processor(JointAttnProcessor2_0())
        stock = adapter.velocity(*arguments, 1.0)
    torch.testing.assert_close(ours, stock, atol=1e-6, rtol=1e-6)


def test_the_chosen_kernel_is_the_one_that_runs(load_tiny):
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    native = load_tiny(attention={"transformer": choice("transformer", "native")})
    math = load_tiny(
        attention={
            "transformer": choice("transformer", "_native_math"),
            "text_encoder": choice("text_encoder", "eager", "transformers"),
            "vae": choice("vae", "_native_math"),
        }
    )
    arguments = batch(native)
    assert fused in operators(lambda: native.velocity(*arguments, 1.0))
    assert fused not in operators(lambda: math.velocity(*arguments, 1.0))
    assert fused in operators(lambda: native.velocity(*arguments, 1.0))  # one adapter does not change another
    assert math.attention_in_use["transformer"] == "_native_math"
    with torch.no_grad():
        pair = [adapter.velocity(*arguments, 1.0) for adapter in (native, math)]
    torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)
    for part in (lambda a: a.encode(["abc"], None, SIZE), lambda a: a.decode(arguments[0], SIZE)):
        assert fused in operators(lambda part=part: part(native))
        assert fused not in operators(lambda part=part: part(math))


@pytest.mark.parametrize(
    ("component", "name", "library", "message"),
    [
        ("transformer", "nonsense", "diffusers", "'nonsense' for the transformer"),
        ("transformer", "flash", "diffusers", "'flash' for the transformer"),
        ("transformer", "sdpa", "transformers", "is a transformers name"),
        ("vae", "flash", "diffusers", "AutoencoderKL cannot use"),
        ("text_encoder", "native", "diffusers", "is a diffusers name"),
    ],
)
def test_kernels_that_cannot_be_used_stop_the_load(load_tiny, component, name, library, message):
    with pytest.raises(AttentionUnavailable, match=message):
        load_tiny(attention={component: choice(component, name, library)})


def test_attention_requests_come_from_the_config_files(tiny_folders, tmp_path):
    for name in ("model_index.json", *(f"{p}/config.json" for p in ("transformer", "vae", "text_encoder_2"))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((tiny_folders["clip"] / name).read_bytes())
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text("{}")
    (tmp_path / "text_encoder").mkdir()
    config = (tiny_folders["clip"] / "text_encoder" / "config.json").read_text()
    (tmp_path / "text_encoder" / "config.json").write_text(
        config.replace('"num_attention_heads": 2', '"num_attention_heads": 4')
    )
    assert SD3Adapter.attention_requests(tmp_path, "bfloat16", training=True) == [
        AttentionRequest("transformer", "bfloat16", 8, backward=True),
        AttentionRequest("text_encoder", "bfloat16", 4, causal=True),
        AttentionRequest("text_encoder", "bfloat16", 8, causal=True),
        AttentionRequest("vae", "bfloat16", 8),
    ]


def test_published_lora_targets_all_match(load_tiny):
    adapter = load_tiny("sd35", components=("transformer",))
    info = inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    # 8 projections in each of 2 blocks; the last block has no output projection of text.
    assert info.expected_modules == bound_lora_modules(adapter.transformer) == 15
    assert [name for name, _ in adapter.trainable_tensors()] == [
        name for name, _ in lora_named_tensors(adapter.transformer)
    ]


def test_fused_layout_computes_the_same_projections(load_tiny):
    transformer = load_tiny("sd35", components=("transformer",)).transformer
    fused = fuse(named_tensors(transformer).items())
    attn = transformer.transformer_blocks[0].attn
    x = torch.randn(3, attn.to_q.in_features)
    prefix = "transformer_blocks.0.attn."
    for name, parts in (
        ("to_qkv", (attn.to_q, attn.to_k, attn.to_v)),
        ("add_kv_proj", (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)),
    ):
        whole = torch.nn.functional.linear(x, fused[f"{prefix}{name}.weight"], fused[f"{prefix}{name}.bias"])
        torch.testing.assert_close(whole, torch.cat([part(x) for part in parts], dim=-1), atol=1e-6, rtol=1e-6)
    assert "transformer_blocks.0.attn2.to_qkv.weight" in fused
    assert not any(".to_q." in name or "_q_proj" in name for name in fused)
    assert sum(t.numel() for t in fused.values()) == sum(t.numel() for t in named_tensors(transformer).values())


def test_rollout_names(load_tiny):
    adapter = load_tiny(components=())
    tensor = torch.ones(1)
    assert list(adapter.rollout_layout("transformer_blocks.1.attn.to_k.bias", tensor)) == [
        ("transformer_blocks.1.attn.to_qkv.bias:k", tensor)
    ]
    for name in ("proj_out.weight", "a.attn.to_out.0.weight", "a.attn.norm_q.weight", "a.attn.to_q.lora_A.weight"):
        assert rollout_name(name) == (name, None)
    with pytest.raises(WeightSyncError, match="'a.to_qkv.weight' lacks its part 'k'"):
        fuse([("a.to_q.weight", tensor), ("a.to_v.weight", tensor)])
