"""Folders that are missing, incomplete, corrupt or of another family stop with an error that names the file."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.qwen_image.adapter import QwenImageAdapter
from omni_portable.models.qwen_image.tiny import build_tiny_qwen_image
from tests.support.model_faults import edit

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(qwen_folders, tmp_path):
    """A copy to break."""
    return shutil.copytree(qwen_folders["small"], tmp_path / "model")


def load(path):
    return QwenImageAdapter(ModelLoad(path, torch.device("cpu"), torch.float32))


def test_missing_folder(tmp_path):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name",
    [
        "model_index.json",
        "transformer/config.json",
        "vae/config.json",
        "text_encoder/config.json",
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


def test_truncated_weights_are_named(folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=rf"{WEIGHTS} is truncated or corrupt"):
        load(folder)


def test_a_tokenizer_without_its_vocabulary(folder):
    (folder / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="tokenizer lacks its vocabulary"):
        load(folder)


@pytest.mark.parametrize("name", ["QwenImageEditPlusPipeline", "FluxPipeline"])
def test_another_pipeline_is_refused(folder, name):
    edit(folder / "model_index.json", _class_name=name)
    with pytest.raises(ModelError, match=rf"model_index.json describes a {name}, not a QwenImagePipeline"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("transformer", {"in_channels": 24}, "transformer in_channels is 24, VAE z_dim x 4 is 16"),
        ("transformer", {"patch_size": 1}, "transformer patch_size is 1"),
        ("transformer", {"joint_attention_dim": 48}, "joint_attention_dim is 48, text hidden_size is 32"),
        ("transformer", {"attention_head_dim": "x"}, "'attention_head_dim' is 'x'"),
        ("transformer", {"guidance_embeds": True}, "'guidance_embeds' is True"),
        ("transformer", {"use_layer3d_rope": True}, "'use_layer3d_rope' is True"),
        ("vae", {"z_dim": 0}, "'z_dim' is 0"),
        ("vae", {"dim_mult": []}, "'dim_mult' is"),
        ("vae", {"latents_mean": [0.0]}, "latents_mean is 1, VAE z_dim is 4"),
        ("vae", {"latents_std": [1, 1, "x", 1]}, "'latents_std' is"),
        ("vae", {"temperal_downsample": [False, True]}, "the number of temperal_downsample is 2"),
        ("vae", {"temperal_downsample": 3}, "the number of temperal_downsample is 3"),
    ],
)
def test_parts_that_do_not_fit_together(folder, file, change, message):
    edit(folder / file / "config.json", **change)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_text_encoder_config_of_the_older_form_is_read(folder):
    size = Extent(16, 16)
    before = load(folder).encode(["abc"], None, size)[0]["prompt_embeds"]
    path = folder / "text_encoder" / "config.json"
    text = json.loads(path.read_text())["text_config"]
    rope = text["rope_parameters"]
    older = {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    absent = dict.fromkeys(("text_config", "rope_parameters", "layer_types"), "absent")
    edit(path, **(text | older | absent | {"model_type": "qwen2_5_vl"}))
    assert QwenImageAdapter.attention_requests(folder, "float32", training=False)[1].head_dim == 8
    assert torch.equal(load(folder).encode(["abc"], None, size)[0]["prompt_embeds"], before)
    edit(path, num_key_value_heads="absent")
    with pytest.raises(ModelError, match="text_encoder/config.json lacks the key 'num_key_value_heads'"):
        load(folder)


def test_a_scheduler_of_another_kind_is_refused(folder):
    edit(folder / "scheduler/scheduler_config.json", _class_name="DDIMScheduler")
    with pytest.raises(ModelError, match="'DDIMScheduler' is no flow-matching Euler scheduler"):
        load(folder).schedule(4, Extent(16, 16))


def test_equal_seeds_build_equal_folders(tmp_path):
    state = torch.random.get_rng_state()
    first, again, other = (build_tiny_qwen_image(tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (first / WEIGHTS).read_bytes() == (again / WEIGHTS).read_bytes()
    assert (first / WEIGHTS).read_bytes() != (other / WEIGHTS).read_bytes()
    for name in ("tokenizer/tokenizer.json", "text_encoder/model.safetensors"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
