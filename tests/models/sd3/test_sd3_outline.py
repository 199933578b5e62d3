"""The outline knows an SD3 model without torch: counts and attention are those of the loaded model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from math import prod

import pytest
import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from omni_portable.config.loader import load_config, packaged
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.models.lora import inject_lora
from omni_portable.models.outline import read_outline
from omni_portable.models.sd3 import LORA_TARGETS, SD3Options
from omni_portable.models.sd3.adapter import SD3Adapter
from omni_portable.models.sd3.outline import COUNTED, outline
from omni_portable.models.sd3.published import _ENCODERS, _VAE, TRANSFORMERS
from omni_portable.models.sd3.shapes import clip_elements, elements, t5_elements, transformer_shapes, vae_elements

VARIANTS = ("clip", "t5", "sd35")
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
RECIPE = "sd3/flow_grpo_ocr_tiny"


def describe(path, dtype="float32", training=True):
    return outline(str(path), SD3Options(), dtype, training)


def modules(adapter):
    return {"transformer": adapter.transformer, **adapter._text.models, "vae": adapter._vae}


def held(module):
    """Elements of the tensors that a module's weight file holds."""
    return sum(tensor.numel() for tensor in {t.data_ptr(): t for t in module.state_dict().values()}.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_from_weight_files_equal_the_loaded_modules(load_tiny, tiny_folders, variant):
    found = {part.name: part for part in describe(tiny_folders[variant]).parts}
    loaded = modules(load_tiny(variant))
    assert set(found) == set(loaded)
    for name, module in loaded.items():
        assert found[name].elements == held(module), name
        assert found[name].parameters == sum(p.numel() for p in module.parameters()), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bytes_are_those_of_the_loaded_modules(load_tiny, tiny_folders, dtype):
    """T5 keeps a part of its weights in fp32 when it is loaded in float16."""
    found = {part.name: part for part in describe(tiny_folders["t5"], dtype).parts}
    loaded = modules(load_tiny("t5", dtype=getattr(torch, dtype)))
    for name, module in loaded.items():
        tensors = {t.data_ptr(): t for t in module.state_dict().values()}.values()
        assert found[name].bytes(dtype) == sum(t.numel() * t.element_size() for t in tensors), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_from_config_files_are_the_same(tiny_folders, tmp_path, variant):
    folder = shutil.copytree(tiny_folders[variant], tmp_path / "model")
    expected = describe(folder)
    for file in folder.rglob("*.safetensors*"):
        file.unlink()
    bare = describe(folder)
    assert [(p.name, p.elements, p.parameters) for p in bare.parts] == [
        (p.name, p.elements, p.parameters) for p in expected.parts
    ]
    assert {part.source for part in bare.parts} == {COUNTED}
    assert "no weight files yet" in bare.notes[0]


def test_the_packaged_model_counts_right():
    folder = packaged("glyph-sd3")
    found = read_outline(load_config(RECIPE), "float32")
    for part in found.parts:
        tensors = load_file(next((folder / part.name).glob("*.safetensors")))
        assert part.elements == sum(tensor.numel() for tensor in tensors.values()), part.name
        table = tensors["pos_embed.pos_embed"].numel() if part.name == "transformer" else 0
        assert part.parameters == part.elements - table
    assert [part.name for part in found.parts] == ["transformer", "text_encoder", "text_encoder_2", "vae"]
    assert found.trainable_parameters == 973_456
    assert (found.blocks, found.width, found.heads, found.head_dim) == (3, 96, 3, 32)
    assert found.sizes is not None
    assert found.sizes.tokens(32, 48) == 8 * 12
    assert found.sizes.conditioning_elements() == (16 + 16) * 128 + 128


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_and_shapes_are_those_of_the_state_dict(load_tiny, variant):
    adapter = load_tiny(variant, components=("transformer",))
    expected = {name: tuple(tensor.shape) for name, tensor in adapter.transformer.state_dict().items()}
    assert transformer_shapes(adapter.folder.transformer) == expected


@pytest.mark.parametrize("repository", TRANSFORMERS)
def test_published_transformers_count_right(repository):
    config = TRANSFORMERS[repository]
    with torch.device("meta"):
        state = SD3Transformer2DModel(**config).state_dict()
    assert transformer_shapes(config) == {name: tuple(tensor.shape) for name, tensor in state.items()}


def test_published_encoders_and_vae_count_right():
    blocks = len(_VAE["block_out_channels"])
    with torch.device("meta"):
        built = {
            "text_encoder": CLIPTextModelWithProjection(CLIPTextConfig(**_ENCODERS["text_encoder"])),
            "text_encoder_2": CLIPTextModelWithProjection(CLIPTextConfig(**_ENCODERS["text_encoder_2"])),
            "text_encoder_3": T5EncoderModel(T5Config(**_ENCODERS["text_encoder_3"])),
            "vae": AutoencoderKL(
                **_VAE,
                down_block_types=("DownEncoderBlock2D",) * blocks,
                up_block_types=("UpDecoderBlock2D",) * blocks,
            ),
        }
    real = {name: sum(p.numel() for p in module.parameters()) for name, module in built.items()}
    found = {part.name: part.elements for part in describe("stabilityai/stable-diffusion-3.5-medium").parts}
    assert real == {name: found[name] for name in real}


def test_published_totals_equal_those_that_another_library_publishes():
    """KerasHub counts transformer with position table, both CLIPs and VAE (`metadata.params` of its presets)."""
    totals = {"3-medium-diffusers": 2_987_080_931, "3.5-medium": 3_371_793_763, "3.5-large": 9_048_410_595}
    for name, total in totals.items():
        parts = {part.name: part.elements for part in describe(f"stabilityai/stable-diffusion-{name}").parts}
        assert sum(parts.values()) - parts["text_encoder_3"] == total


@pytest.mark.parametrize(("heads", "gated", "attention", "quant"), [(2, True, True, True), (3, False, False, False)])
def test_counts_of_other_configs(heads, gated, attention, quant):
    clip = {"vocab_size": 50, "max_position_embeddings": 9, "hidden_size": 8 * heads, "num_attention_heads": heads}
    clip |= {"intermediate_size": 20, "num_hidden_layers": 3, "projection_dim": 5}
    t5 = {"d_model": 12, "d_kv": 5, "d_ff": 7, "num_layers": 3, "num_heads": heads, "vocab_size": 11}
    t5 |= {"feed_forward_proj": "gated-gelu" if gated else "relu", "relative_attention_num_buckets": 6}
    vae = {"latent_channels": 3, "block_out_channels": [4, 8, 8], "layers_per_block": heads}
    vae |= {"mid_block_add_attention": attention, "use_quant_conv": quant, "use_post_quant_conv": quant}
    types = {"down_block_types": ("DownEncoderBlock2D",) * 3, "up_block_types": ("UpDecoderBlock2D",) * 3}
    for module, count in (
        (CLIPTextModelWithProjection(CLIPTextConfig(**clip)), clip_elements(clip)),
        (T5EncoderModel(T5Config(**t5)), t5_elements(t5)),
        (AutoencoderKL(**vae, **types, norm_num_groups=4), vae_elements(vae)),
    ):
        assert count == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("targets", [LORA_TARGETS, ("to_q", "ff.net.2"), ("context_embedder", "attn.to_k")])
def test_lora_parameters_are_those_that_are_injected(load_tiny, tiny_folders, variant, targets):
    sizes = describe(tiny_folders[variant]).sizes
    module = load_tiny(variant, components=("transformer",)).transformer
    inject_lora(module, rank=3, alpha=6.0, targets=targets, seed=0)
    injected = sum(p.numel() for name, p in module.named_parameters() if ".lora_" in name)
    assert sizes.lora_parameters(3, targets) == injected


@pytest.mark.parametrize(("target", "problem"), [("attn.to_x", "matches no module"), ("pos_embed.proj", "no linear")])
def test_lora_targets_that_cannot_be(tiny_folders, target, problem):
    with pytest.raises(ConfigError, match=problem):
        describe(tiny_folders["clip"]).sizes.lora_parameters(4, (target,))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("training", [True, False])
def test_attention_is_what_the_adapter_asks_for(tiny_folders, variant, training):
    path = tiny_folders[variant]
    found = describe(path, "bfloat16", training).attention
    assert list(found) == SD3Adapter.attention_requests(path, "bfloat16", training)


def test_a_folder_elsewhere_is_known_by_its_published_name():
    found = describe("/models/stable-diffusion-3.5-medium", "bfloat16")
    assert (found.blocks, found.width) == (24, 1536)
    assert "published for stabilityai/stable-diffusion-3.5-medium" in found.notes[0]
    assert {request.head_dim for request in found.attention} == {64, 512}


def test_a_folder_elsewhere_that_nobody_knows():
    found = describe("/models/my-sd3")
    assert found.sizes is None
    assert found.parts == ()
    assert "/models/my-sd3 is not on this machine" in found.unknown
    assert [(request.component, request.head_dim) for request in found.attention] == [
        ("transformer", None),
        ("text_encoder", None),
        ("vae", None),
    ]


def test_damaged_weights_are_told(tiny_folders, tmp_path):
    folder = shutil.copytree(tiny_folders["clip"], tmp_path / "model")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(ModelError, match="truncated or corrupt"):
        describe(folder)


def test_weights_of_another_config_are_told(tiny_folders, tmp_path):
    folder = shutil.copytree(tiny_folders["clip"], tmp_path / "model")
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_layers": 3}))
    with pytest.raises(ModelError, match="missing in the weights"):
        describe(folder)


def test_an_unknown_norm_is_told(tiny_folders, tmp_path):
    folder = shutil.copytree(tiny_folders["clip"], tmp_path / "model")
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"qk_norm": "layer_norm"}))
    with pytest.raises(ModelError, match="layer_norm"):
        describe(folder)


def test_elements_counts_every_tensor():
    shapes = transformer_shapes(TRANSFORMERS["stabilityai/stable-diffusion-3.5-large"])
    assert elements(shapes) == sum(map(prod, shapes.values())) == 8_056_627_520 + 192 * 192 * 2432


def test_reading_an_outline_loads_no_torch():
    code = (
        "import sys\n"
        "from omni_portable.config.loader import load_config, packaged\n"
        "from omni_portable.models.outline import read_outline\n"
        f"assert read_outline(load_config({RECIPE!r}), 'float32').sizes is not None\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
