"""Streams, frames, packing, layouts and refusals of the MiniMax-H3 adapter."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.errors import ArtifactError, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter, ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.minimax_h3 import SPEC, MiniMaxH3Options
from omni_portable.models.minimax_h3.adapter import MiniMaxH3Adapter
from omni_portable.models.minimax_h3.layout import LAYOUT
from omni_portable.models.weights import named_tensors
from tests.models.minimax_h3.conftest import ELEMENTS, SIZE
from tests.support.families import choice


def sound(samples=1480, rate=1600, channels=2):
    return MediaArtifact("audio", "audio", 0.1 * torch.ones(channels, samples), "CT", sample_rate=rate)


def video(shape=(22, 3, 16, 24)):
    return MediaArtifact("video", "video", torch.full(shape, 90, dtype=torch.uint8), "TCHW", fps=24.0)


def test_the_spec_imports_without_torch():
    code = "import sys; from omni_portable.models.minimax_h3 import SPEC; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registered_spec_loads_an_adapter(load_h3):
    assert registry.spec("model", "minimax_h3") is SPEC
    assert isinstance(load_h3(), DiffusionAdapter)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_encoder_layer": 0}, "at least 1"),
        ({"max_sequence_length": 0}, "at least 1"),
        ({"audio_shift": -1.0}, "must be 0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        MiniMaxH3Options(**options)


def test_streams_hold_generated_rows_alone(load_h3):
    adapter = load_h3(components=())
    assert adapter.latent_shape(SIZE) == (ELEMENTS,)
    assert adapter.latent_streams(SIZE) == {"video": (0, 672), "audio": (672, 968)}


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (Extent(20, 24, 22, 24.0), "rollout.height to 16"),
        (Extent(16, 24, 24, 24.0), "rollout.num_frames to 39"),
        (Extent(16, 24, 5, 24.0), "at least 22"),
        (Extent(16, 24, 22, 25.0), "draws 24 frames per second"),
        (Extent(16, 24, 22, 0.0), "rollout.frame_rate"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_refused(load_h3, extent, message):
    adapter = load_h3(components=())
    for ask in (adapter.latent_shape, lambda e: adapter.schedule(4, e)):
        with pytest.raises(ConfigError, match=message):
            ask(extent)


def test_the_published_frame_counts_are_of_the_form(load_h3):
    geometry = load_h3(components=()).folder.geometry
    assert geometry(Extent(16, 24, 124, 24.0)).frames == 37
    assert geometry(Extent(16, 24, 107, 24.0)).frames == 32
    assert geometry(Extent(16, 24, 124, 24.0)).audio == 207


def test_there_is_no_guidance(load_h3):
    adapter = load_h3(components=("transformer", "text_encoder"))
    conditioning = adapter.collate(adapter.encode(["a cat"], None, SIZE))
    with pytest.raises(ModelError, match="guidance_scale 2.0"):
        adapter.velocity(torch.zeros(1, ELEMENTS), torch.tensor([0.5]), conditioning, 2.0, conditioning)


@pytest.mark.parametrize(
    ("wanted", "given", "problem"),
    [
        ("first", (), "brings no frame"),
        ("first", ("last_frame",), "brings last_frame"),
        ("none", ("first_frame",), "brings first_frame"),
        ("first_last", ("first_frame",), "brings first_frame"),
        ("last", ("first_frame", "last_frame"), "brings first_frame and last_frame"),
    ],
)
def test_a_wrong_number_of_frames_is_refused(load_h3, frames, wanted, given, problem):
    adapter = load_h3(components=("text_encoder", "vae"), keyframes=wanted)
    with pytest.raises(ArtifactError, match=problem):
        adapter.encode(["x"], [{name: frames[name] for name in given}], SIZE)


def test_the_wanted_frames_are_taken(load_h3, frames):
    for wanted, rows in (("none", 0), ("first", 6), ("last", 6), ("first_last", 12)):
        media = {n: f for n, f in frames.items() if n.removesuffix("_frame") in wanted.split("_")}
        adapter = load_h3(components=("text_encoder", "vae"), keyframes=wanted)
        assert adapter.encode(["x"], [media], SIZE)[0]["keyframe_rows"].shape == (rows, 16)


def test_frames_that_do_not_fit(load_h3, frames):
    adapter = load_h3(components=("text_encoder", "vae"))
    with pytest.raises(ArtifactError, match="takes no input 'middle'"):
        adapter.encode(["x"], [{"middle": frames["last_frame"]}], SIZE)
    with pytest.raises(ArtifactError, match="has 16 x 24 pixels, expected 24 x 24"):
        adapter.encode(["x"], [frames], Extent(24, 24, 22, 24.0))


def test_equal_frames_condition_alike(load_h3, frames):
    """What a prompt is given depends on its frames alone: the samples of a group share it."""
    adapter = load_h3(components=("text_encoder", "vae"))
    first, again = (adapter.encode(["x"], [frames], SIZE)[0] for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_too_few_layers_and_long_prompts(load_h3, caplog):
    with pytest.raises(ConfigError, match="set it to at most 2; 50 as published"):
        load_h3(components=("text_encoder",), text_encoder_layer=3)
    adapter = load_h3(components=("text_encoder",), max_sequence_length=4)
    assert adapter.encode(["a long prompt"], None, SIZE)[0]["prompt_embeds"].shape == (4, 32)
    assert "reads 4 of the 13 tokens" in caplog.text


def test_the_layout_round_trip_is_bit_exact(load_h3):
    module = load_h3(components=("transformer",)).transformer
    own = {name: tensor.detach().clone() for name, tensor in named_tensors(module).items()}
    fused = LAYOUT.fuse(own.items())
    assert fused["blocks.1.attn.qkv_proj.weight"].shape == (96, 32)
    assert "token_refiner.blocks.0.attn.qkv_proj.weight" in fused
    for name in (
        "blocks.0.adaln_proj.linear.bias",
        "blocks.0.attn.q_norm.weight",
        "blocks.0.attn.out_proj.weight",
        "final_layer.norm.weight",
        "final_layer.adaln_proj.linear.weight",
        "final_layer.video_out.weight",
        "final_layer.audio_out.bias",
        "video_patch_proj.weight",
        "audio_patch_proj.weight",
        "condition_proj.weight",
        "time_embedder.proj_in.weight",
        "token_refiner.final_norm.weight",
    ):
        assert name in fused
    first = own["transformer_blocks.0.ff.net.0.proj.weight"]
    assert torch.equal(fused["blocks.0.mlp.fc1.weight"], torch.cat([first[32:], first[:32]]))
    back = LAYOUT.split(fused.items())
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], own[name]) for name in own)


def test_a_lora_survives_the_round_trip_and_means_the_same(load_h3):
    adapter = load_h3(components=("transformer",))
    inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    own = dict(lora_named_tensors(adapter.transformer))
    with torch.no_grad():
        for index, tensor in enumerate(own.values()):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(index)))
    engine = {target: tensor for name, t in own.items() for target, tensor in adapter.rollout_layout(name, t)}
    assert "blocks.0.attn.to_q.lora_A.weight" in engine
    assert "token_refiner.blocks.0.mlp.fc2.lora_B.weight" in engine
    back = LAYOUT.split(engine.items())
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], own[name]) for name in own)
    # the swapped output side of the first feed-forward layer makes the swapped update
    update = (
        own["transformer_blocks.0.ff.net.0.proj.lora_B.weight"]
        @ own["transformer_blocks.0.ff.net.0.proj.lora_A.weight"]
    )
    theirs = engine["blocks.0.mlp.fc1.lora_B.weight"] @ engine["blocks.0.mlp.fc1.lora_A.weight"]
    assert torch.equal(theirs, torch.cat([update[32:], update[:32]]))


def test_media_are_encoded_in_the_scale_of_the_latents(load_h3):
    adapter = load_h3(components=("vae",))
    latents = adapter.encode_media({"video": video(), "audio": sound()}, SIZE)
    assert latents.shape == (ELEMENTS,)
    assert latents.dtype == torch.float32
    unscaled = load_h3(components=("vae",), audio_shift=12.0)
    plain = unscaled.encode_media({"video": video(), "audio": sound()}, SIZE)
    assert torch.equal(plain[:672], latents[:672])
    assert torch.equal(plain[672:] * 4.0, latents[672:])
    one, other = adapter.decode(latents.unsqueeze(0), SIZE)[0], unscaled.decode(plain.unsqueeze(0), SIZE)[0]
    assert torch.equal(one["audio"].data, other["audio"].data)


@pytest.mark.parametrize(
    ("media", "message"),
    [
        ({"audio": sound()}, "asks for the artifact 'video'"),
        ({"video": video((21, 3, 16, 24)), "audio": sound()}, "21 x 16 x 24 frames"),
        ({"video": video(), "audio": sound(rate=48000)}, "2 channels at 48000 Hz, expected 2 at 1600 Hz"),
    ],
)
def test_media_that_do_not_fit(load_h3, media, message):
    with pytest.raises(ArtifactError, match=message):
        load_h3(components=("vae",)).encode_media(media, SIZE)


def test_every_attention_layer_takes_the_kernel(h3_folder):
    requests = MiniMaxH3Adapter.attention_requests(h3_folder, "float32", True)
    assert [(r.component, r.head_dim, r.mask) for r in requests] == [
        ("transformer", 16, "none"),
        ("text_encoder", 16, "none"),
    ]
    math = {"transformer": choice("transformer", "_native_math")}
    load = ModelLoad(h3_folder, torch.device("cpu"), torch.float32, ("transformer",), attention=math)
    assert MiniMaxH3Adapter(load).attention_in_use == {"transformer": "_native_math"}
