"""Folders that are missing, incomplete, corrupt or of another family stop with an error that names the file."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.sd3.adapter import SD3Adapter
from omni_portable.models.sd3.tiny import build_tiny_sd3

SIZE = Extent(16, 16)

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(tiny_folders, tmp_path):
    """A copy to break."""
    return shutil.copytree(tiny_folders["clip"], tmp_path / "model")


@pytest.fixture
def sharded(tiny_folders, tmp_path):
    return shutil.copytree(tiny_folders["sd35"], tmp_path / "model")


def load(path):
    return SD3Adapter(ModelLoad(path, torch.device("cpu"), torch.float32))


def edit(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "absent"}))


def edit_weights(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_missing_folder(tmp_path):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name",
    [
        "model_index.json",
        "transformer/config.json",
        "vae/config.json",
        "text_encoder_2/config.json",
        "scheduler/scheduler_config.json",
        WEIGHTS,
        "vae/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
    ],
)
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"{name} does not exist"):
        load(folder)


@pytest.mark.parametrize("name", [WEIGHTS, "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"])
@pytest.mark.parametrize("keep", [0, 4, 0.5, -1])
def test_truncated_weights_are_named(folder, name, keep):
    content = (folder / name).read_bytes()
    kept = content[: int(len(content) * keep) if isinstance(keep, float) else keep]
    (folder / name).write_bytes(kept)
    with pytest.raises(ModelError, match=rf"{name} is truncated or corrupt \({len(kept)} bytes\)"):
        load(folder)


def test_corrupt_json_is_named(folder):
    (folder / "transformer" / "config.json").write_text('{"in_channels": ')
    with pytest.raises(ModelError, match="transformer/config.json cannot be read"):
        load(folder)
    (folder / "transformer" / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="transformer/config.json holds no JSON object"):
        load(folder)


def test_another_pipeline_is_refused(folder):
    edit(folder / "model_index.json", _class_name="FluxPipeline")
    with pytest.raises(ModelError, match=r"model_index.json describes a FluxPipeline, not a StableDiffusion3Pipeline"):
        load(folder)


def test_another_component_class_is_refused(folder):
    edit(folder / "transformer" / "config.json", _class_name="FluxTransformer2DModel")
    with pytest.raises(ModelError, match=r"transformer/config.json describes a FluxTransformer2DModel"):
        load(folder)
    edit(folder / "model_index.json", vae=["diffusers", "AutoencoderTiny"])
    with pytest.raises(ModelError, match=r"lists 'vae' as AutoencoderTiny"):
        load(folder)


def test_another_encoder_class_is_refused(folder):
    edit(folder / "text_encoder" / "config.json", architectures=["CLIPTextModel"])
    with pytest.raises(
        ModelError, match=r"text_encoder/config.json describes a CLIPTextModel, not a CLIPTextModelWith"
    ):
        load(folder)


def test_a_missing_tensor_is_an_error(folder):
    edit_weights(folder / WEIGHTS, lambda tensors: tensors.pop("proj_out.bias"))
    with pytest.raises(ModelError, match=r"1 missing keys, first 'proj_out.bias'"):
        load(folder)


def test_an_unexpected_tensor_is_an_error(folder):
    edit_weights(folder / WEIGHTS, lambda tensors: tensors.update(surplus=torch.zeros(1)))
    with pytest.raises(ModelError, match=r"1 unexpected keys, first 'surplus'"):
        load(folder)


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_text_encoder_weights_must_fit_too(folder, change):
    path = folder / "text_encoder" / "model.safetensors"
    actions = {
        "missing": lambda t: t.pop("text_projection.weight"),
        "unexpected": lambda t: t.update(surplus=torch.zeros(1)),
        "shape": lambda t: t.update({"text_projection.weight": torch.zeros(3, 16)}),
    }
    edit_weights(path, actions[change])
    with pytest.raises(ModelError, match="text_encoder/model.safetensors"):
        load(folder)


def test_weights_of_another_size_are_refused(folder):
    edit(folder / "transformer" / "config.json", attention_head_dim=16, caption_projection_dim=32)
    with pytest.raises(ModelError, match="do not make a model"):
        load(folder)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("transformer", {"in_channels": 8}, "transformer in_channels is 8, VAE latent_channels is 4"),
        ("transformer", {"pooled_projection_dim": 64}, "pooled_projection_dim is 64, both CLIPs' projection_dim is 32"),
        ("transformer", {"joint_attention_dim": 30}, "the CLIPs' hidden_size is 32, more than"),
        ("transformer", {"patch_size": "absent", "joint_attention_dim": "absent"}, "lacks the key"),
        ("text_encoder", {"max_position_embeddings": 8}, "makes 16 tokens, text_encoder has 8 positions"),
        ("text_encoder", {"vocab_size": 50}, "tokens, text_encoder embeds 50"),
    ],
)
def test_parts_that_do_not_fit_together(folder, part, changes, message):
    if part == "text_encoder":  # keep the weights loadable, so that the check itself is what speaks
        key = {"max_position_embeddings": "position_embedding", "vocab_size": "token_embedding"}[next(iter(changes))]
        rows = next(iter(changes.values()))
        edit_weights(
            folder / part / "model.safetensors",
            lambda t: t.update({n: v[:rows].clone() for n, v in t.items() if f"{key}.weight" in n}),
        )
    edit(folder / part / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_t5_width_must_fit(tmp_path):
    path = build_tiny_sd3(tmp_path, encoders=("text_encoder", "text_encoder_2", "text_encoder_3"))
    edit(path / "text_encoder_3" / "config.json", d_model=64)
    with pytest.raises(ModelError, match="joint_attention_dim is 40, T5 d_model is 64"):
        load(path)


def test_a_folder_without_any_encoder_is_refused(tmp_path):
    path = build_tiny_sd3(tmp_path, encoders=())
    with pytest.raises(ModelError, match="has no text encoder"):
        load(path)


@pytest.mark.parametrize("present", [("text_encoder",), ("text_encoder_2",), ("text_encoder_2", "text_encoder_3")])
def test_an_absent_clip_contributes_zeros_of_its_width(tmp_path, present):
    full = load(build_tiny_sd3(tmp_path / "full", encoders=("text_encoder", "text_encoder_2", "text_encoder_3")))
    part = load(build_tiny_sd3(tmp_path / "part", encoders=present))
    whole, some = full.encode(["a7"], None, SIZE)[0], part.encode(["a7"], None, SIZE)[0]
    assert {name: t.shape for name, t in whole.items()} == {name: t.shape for name, t in some.items()}
    width = whole["pooled_prompt_embeds"].shape[0] // 2
    first, second = some["pooled_prompt_embeds"][:width], some["pooled_prompt_embeds"][width:]
    assert bool(first.any()) == ("text_encoder" in present)
    assert bool(second.any()) == ("text_encoder_2" in present)
    clip = some["prompt_embeds"][:16]
    assert bool(clip[:, :width].any()) == ("text_encoder" in present)
    assert bool(clip[:, width : 2 * width].any()) == ("text_encoder_2" in present)


def test_t5_alone_has_no_clip_tokens(tmp_path):
    adapter = load(build_tiny_sd3(tmp_path, encoders=("text_encoder_3",)))
    conditioning = adapter.encode(["a7"], None, SIZE)[0]
    assert conditioning["prompt_embeds"].shape[0] == 256
    assert not conditioning["pooled_prompt_embeds"].any()


def test_a_tokenizer_without_vocabulary_is_refused(folder):
    (folder / "tokenizer_2" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer_2 lacks its vocabulary"):
        load(folder)


def test_other_schedulers_are_refused(folder):
    edit(folder / "scheduler" / "scheduler_config.json", _class_name="DDIMScheduler")
    with pytest.raises(ModelError, match="DDIMScheduler"):
        load(folder).schedule(4, Extent(16, 16))


def test_sharded_folders_name_the_shard(sharded):
    assert load(sharded).transformer is not None
    shard = sorted((sharded / "transformer").glob("*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(ModelError, match=f"{shard.name} is truncated"):
        load(sharded)
    shard.unlink()
    with pytest.raises(ModelError, match=f"{shard.name} does not exist"):
        load(sharded)


def test_a_shard_must_hold_what_the_index_says(sharded):
    index = sharded / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    shard = names["proj_out.bias"]
    edit_weights(sharded / "transformer" / shard, lambda tensors: tensors.pop("proj_out.bias"))
    with pytest.raises(ModelError, match=f"{shard} lacks 1 tensors .* proj_out.bias"):
        load(sharded)


def test_whole_and_sharded_weights_together_are_ambiguous(sharded):
    (sharded / WEIGHTS).write_bytes(b"")
    with pytest.raises(ModelError, match="holds both diffusion_pytorch_model.safetensors and"):
        load(sharded)


def test_equal_seeds_build_equal_folders(tmp_path):
    state = torch.random.get_rng_state()
    first, again, other = (build_tiny_sd3(tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (first / WEIGHTS).read_bytes() == (again / WEIGHTS).read_bytes()
    assert (first / WEIGHTS).read_bytes() != (other / WEIGHTS).read_bytes()


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("transformer/config.json", {"patch_size": 0}),
        ("transformer/config.json", {"pos_embed_max_size": None}),
        ("transformer/config.json", {"joint_attention_dim": [1]}),
        ("transformer/config.json", {"in_channels": 4.0}),
        ("vae/config.json", {"block_out_channels": []}),
        ("vae/config.json", {"block_out_channels": 8}),
        ("vae/config.json", {"latent_channels": True}),
        ("text_encoder/config.json", {"num_attention_heads": 0}),
        ("text_encoder_2/config.json", {"hidden_size": "x"}),
        ("text_encoder_2/config.json", {"vocab_size": "absent"}),
    ],
)
def test_values_that_are_computed_with_are_checked(folder, file, change):
    edit(folder / file, **change)
    with pytest.raises(ModelError, match=f"{file}.*'{next(iter(change))}'"):
        load(folder)


@pytest.mark.parametrize("change", [{"bos_token_id": "x"}, {"hidden_act": [1]}, {"dtype": "x"}])
def test_what_a_library_cannot_build_from_is_named(folder, change):
    edit(folder / "text_encoder_2/config.json", **change)
    with pytest.raises(ModelError, match="text_encoder_2/config.json"):
        load(folder)


@pytest.mark.parametrize("architectures", [3, "x", ["x"], {"a": 1}])
def test_architectures_of_any_shape(folder, architectures):
    edit(folder / "text_encoder/config.json", architectures=architectures)
    with pytest.raises(ModelError, match="text_encoder/config.json describes"):
        load(folder)


@pytest.mark.parametrize("entry", ["x", 1, [1], {"a": "b"}, True])
@pytest.mark.parametrize("component", ["transformer", "text_encoder_3"])
def test_entries_of_the_index_of_any_shape(folder, component, entry):
    edit(folder / "model_index.json", **{component: entry})
    with pytest.raises(ModelError, match=f"model_index.json lists '{component}' as"):
        load(folder)


@pytest.mark.parametrize("content", ['{"a": ' + "1" * 5000 + "}", "[" * 100_000], ids=["digits", "nesting"])
def test_json_that_python_does_not_read(folder, content):
    (folder / "vae/config.json").write_text(content)
    with pytest.raises(ModelError, match="vae/config.json cannot be read"):
        load(folder)


@pytest.mark.parametrize("weight_map", [[], None, {}, {"a": 3}, "x"])
def test_an_index_without_a_map(sharded, weight_map):
    (index,) = (sharded / "transformer").glob("*.index.json")
    edit(index, weight_map=weight_map)
    with pytest.raises(ModelError, match="has no weight_map"):
        load(sharded)


@pytest.mark.parametrize("content", ["{}", "[]", '{"model": 3}'])
def test_a_tokenizer_that_cannot_be_built(folder, content):
    (folder / "tokenizer/tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="tokenizer"):
        load(folder)
