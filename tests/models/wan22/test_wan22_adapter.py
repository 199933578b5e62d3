"""Experts, sizes, conditions, layouts and refusals of the Wan 2.2 adapter."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.errors import ArtifactError, AttentionUnavailable, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter, ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.wan22 import SPEC, Wan22Options
from omni_portable.models.wan22.adapter import Wan22Adapter
from omni_portable.models.wan22.experts import Experts
from omni_portable.models.wan22.layout import LAYOUT
from tests.models.wan22.conftest import SIZE
from tests.support.families import assert_round_trip, choice


def batch(adapter, rows=2):
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(rows, *adapter.latent_shape(SIZE), generator=generator)
    width = adapter.folder.transformer["text_dim"]
    return latents, {"prompt_embeds": torch.randn(rows, 16, width, generator=generator)}


def test_the_spec_imports_without_torch():
    code = "import sys; from omni_portable.models.wan22 import SPEC; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registered_spec_loads_an_adapter(load_wan):
    assert registry.spec("model", "wan22") is SPEC
    assert SPEC.load() is Wan22Adapter
    assert isinstance(load_wan(), DiffusionAdapter)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sequence_length": 0}, "takes 1 to"),
        ({"shift": -1.0}, "shift is -1"),
        ({"low_noise_guidance_scale": -2}, "-2"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        Wan22Options(**options)


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (Extent(40, 48, 9, 8.0), "rollout.height to 32"),
        (Extent(32, 50, 9, 8.0), "rollout.width to 48"),
        (Extent(32, 48, 8, 8.0), "rollout.num_frames to 9"),
        (Extent(32, 48, 9, 0.0), "rollout.frame_rate"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_refused(load_wan, extent, message):
    adapter = load_wan(components=())
    assert adapter.latent_shape(SIZE) == (4, 3, 4, 6)
    assert adapter.latent_streams(SIZE) == {"latents": (0, 288)}
    for ask in (adapter.latent_shape, lambda e: adapter.schedule(4, e)):
        with pytest.raises(ConfigError, match=message):
            ask(extent)


def test_the_schedule_is_the_published_one(load_wan):
    shift = 3.0
    sigmas = load_wan(components=()).schedule(5, SIZE).sigmas
    expected = [shift * s / (1 + (shift - 1) * s) for s in (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)]
    assert sigmas == pytest.approx(expected, abs=1e-7)
    assert load_wan(components=(), shift=8.0).schedule(5, SIZE).sigmas[1] == pytest.approx(32 / 33, abs=1e-7)


def test_rows_of_both_experts_in_one_batch(load_wan):
    """Each row gets what it gets alone, in its place."""
    adapter = load_wan(components=("transformer",))
    latents, conditioning = batch(adapter, 4)
    negative = {name: tensor.flip(0) for name, tensor in conditioning.items()}
    timesteps = torch.tensor([100.0, 900.0, 875.0, 874.0])
    with torch.no_grad():
        together = adapter.velocity(latents, timesteps, conditioning, 3.0, negative)
        for row in range(4):
            one = slice(row, row + 1)
            alone = adapter.velocity(
                latents[one],
                timesteps[one],
                {n: t[one] for n, t in conditioning.items()},
                3.0,
                {n: t[one] for n, t in negative.items()},
            )
            torch.testing.assert_close(together[one], alone, atol=1e-5, rtol=1e-5)


def test_guidance_needs_a_negative_prompt(load_wan):
    adapter = load_wan(components=("transformer",))
    latents, conditioning = batch(adapter)
    with pytest.raises(ModelError, match="guidance_scale 2.0 needs"):
        adapter.velocity(latents, torch.tensor([900.0, 800.0]), conditioning, 2.0)


def test_names_tell_the_experts_apart(load_wan):
    names = [name for name, _ in load_wan(components=("transformer",)).trainable_tensors()]
    assert {name.split(".")[0] for name in names} == {"transformer", "transformer_2"}
    assert len(names) == len(set(names))
    single = [name for name, _ in load_wan("ti2v", components=("transformer",)).trainable_tensors()]
    assert single[0].split(".")[0] == "scale_shift_table"


@pytest.mark.parametrize(
    ("trained", "prefixes"),
    [("both", {"transformer", "transformer_2"}), ("high_noise", {"transformer"}), ("low_noise", {"transformer_2"})],
)
def test_which_expert_gets_a_lora_is_an_option(load_wan, trained, prefixes):
    adapter = load_wan(components=("transformer",), trained_expert=trained)
    info = inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    names = [name for name, _ in lora_named_tensors(adapter.transformer)]
    assert {name.split(".")[0] for name in names} == prefixes
    assert info.expected_modules == 20 * len(prefixes)
    assert {name for name, _ in adapter.trainable_tensors()} == set(names)


def test_all_weights_of_one_expert_alone_are_not_trained(load_wan):
    module = load_wan(components=("transformer",), trained_expert="low_noise").transformer
    assert isinstance(module, Experts)
    with pytest.raises(ConfigError, match=r"model\.lora\.rank above 0"):
        module.requires_grad_(True)
    with pytest.raises(ConfigError, match="has one transformer"):
        load_wan("ti2v", trained_expert="low_noise")


def test_both_experts_are_exported_and_checkpointed(load_wan, tmp_path):
    module = load_wan(components=("transformer",)).transformer
    module.enable_gradient_checkpointing()
    assert all(expert.is_gradient_checkpointing for expert in module.children())
    module.save_pretrained(str(tmp_path), safe_serialization=True)
    assert {p.name for p in tmp_path.iterdir()} == {"transformer", "transformer_2"}


@pytest.mark.parametrize(("variant", "prefix"), [("t2v", "transformer(_2)?."), ("ti2v", "")])
def test_the_layout_round_trip_is_bit_exact(load_wan, variant, prefix):
    adapter = load_wan(variant, components=("transformer",))
    fused = (
        r"blocks\.1\.attn1\.to_qkv\.weight",
        r"blocks\.0\.attn2\.to_q\.weight",
        r"blocks\.0\.attn1\.to_out\.bias",
        r"blocks\.0\.ffn\.net_0\.proj\.weight",
        r"blocks\.0\.scale_shift_table",
        r"output_scale_shift_prepare\.scale_shift_table",
    )
    assert_round_trip(adapter, LAYOUT, [prefix + pattern for pattern in fused])


def test_the_layout_keeps_the_parts_of_a_lora(load_wan):
    adapter = load_wan(components=("transformer",))
    inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    own = dict(lora_named_tensors(adapter.transformer))
    engine = {name: tensor for n, t in own.items() for name, tensor in adapter.rollout_layout(n, t)}
    assert "transformer.blocks.0.attn1.to_q.lora_A.weight" in engine
    assert "transformer.blocks.0.attn1.to_out.lora_B.weight" in engine
    assert "transformer_2.blocks.1.ffn.net_2.lora_A.weight" in engine
    back = LAYOUT.split(engine.items())
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], own[name]) for name in own)


def test_media_that_do_not_fit(load_wan, frames):
    image = load_wan("i2v", components=("text_encoder", "vae"))
    with pytest.raises(ConfigError, match="draws from text alone"):
        load_wan(components=("text_encoder",)).encode(["x"], [frames], SIZE)
    with pytest.raises(ArtifactError, match="takes no input 'last_frame'"):
        load_wan("ti2v", components=("text_encoder", "vae")).encode(["x"], [frames], SIZE)
    with pytest.raises(ArtifactError, match="every prompt needs a 'first_frame'"):
        image.encode(["x"], None, SIZE)
    with pytest.raises(ArtifactError, match="asks for the artifact 'first_frame'"):
        image.encode(["x"], [{"last_frame": frames["last_frame"]}], SIZE)
    with pytest.raises(ArtifactError, match="takes no input 'middle'"):
        image.encode(["x"], [{**frames, "middle": frames["last_frame"]}], SIZE)
    with pytest.raises(ArtifactError, match="has 32 x 48 pixels, expected 32 x 64"):
        image.encode(["x"], [frames], Extent(32, 64, 9, 8.0))
    with pytest.raises(ArtifactError, match="no 'last_frame'"):
        image.encode(["x"], [frames], Extent(32, 48, 1, 8.0))


def test_encoded_media_are_what_decoding_made_of_them(load_wan):
    adapter = load_wan(components=("vae",))
    pixels = torch.full((9, 3, 32, 48), 128, dtype=torch.uint8)
    latents = adapter.encode_media({"video": MediaArtifact("video", "video", pixels, "TCHW", fps=8.0)}, SIZE)
    assert latents.shape == adapter.latent_shape(SIZE)
    assert latents.dtype == torch.float32
    with pytest.raises(ArtifactError, match="5 x 32 x 48 frames and pixels, expected 9 x 32 x 48"):
        adapter.encode_media({"video": MediaArtifact("video", "video", pixels[:5], "TCHW", fps=8.0)}, SIZE)


def test_every_attention_layer_of_both_experts_takes_the_kernel(wan_folders):
    (request,) = Wan22Adapter.attention_requests(wan_folders["t2v"], "float32", True)
    assert (request.component, request.head_dim, request.backward) == ("transformer", 12, True)
    math = choice("transformer", "_native_math")
    load = ModelLoad(
        wan_folders["t2v"], torch.device("cpu"), torch.float32, ("transformer",), attention={"transformer": math}
    )
    assert Wan22Adapter(load).attention_in_use == {"transformer": "_native_math", "transformer_2": "_native_math"}
    vae = choice("vae", "_native_math")
    with pytest.raises(AttentionUnavailable, match="AutoencoderKLWan cannot use"):
        Wan22Adapter(ModelLoad(load.path, load.torch_device, load.dtype, ("vae",), attention={"vae": vae}))
