"""Folders that are missing, incomplete or of another family stop with an error that names the file."""

from __future__ import annotations

import shutil

import pytest
import torch

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.flux.adapter import FluxAdapter
from omni_portable.models.flux.tiny import build_tiny_flux
from tests.support.model_faults import edit

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(flux_folders, tmp_path):
    """A copy to break."""
    return shutil.copytree(flux_folders["dev"], tmp_path / "model")


def load(path):
    return FluxAdapter(ModelLoad(path, torch.device("cpu"), torch.float32))


def test_missing_folder(tmp_path):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name",
    ["model_index.json", "scheduler/scheduler_config.json", WEIGHTS, "text_encoder/model.safetensors"],
)
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"{name} does not exist"):
        load(folder)


def test_truncated_weights_are_named(folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-1])
    with pytest.raises(ModelError, match=rf"{WEIGHTS} is truncated or corrupt"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model_index.json", {"_class_name": "QwenImagePipeline"}, "describes a QwenImagePipeline, not a FluxPipeline"),
        ("model_index.json", {"text_encoder_2": [None, None]}, "lists 'text_encoder_2' as None"),
        (
            "transformer/config.json",
            {"in_channels": 24},
            "transformer in_channels is 24, VAE latent_channels x 4 is 16",
        ),
        ("transformer/config.json", {"patch_size": 2}, "transformer patch_size is 2"),
        ("transformer/config.json", {"joint_attention_dim": 48}, "joint_attention_dim is 48, T5 d_model is 40"),
        ("transformer/config.json", {"pooled_projection_dim": 8}, "pooled_projection_dim is 8, CLIP hidden_size is 16"),
        (
            "transformer/config.json",
            {"axes_dims_rope": [4, 6, 8]},
            "attention_head_dim is 16, the sum of axes_dims_rope",
        ),
        ("transformer/config.json", {"axes_dims_rope": "x"}, "'axes_dims_rope' is 'x'"),
        ("vae/config.json", {"block_out_channels": []}, "'block_out_channels' is"),
        ("text_encoder/config.json", {"num_attention_heads": "absent"}, "lacks the key 'num_attention_heads'"),
        ("text_encoder/config.json", {"architectures": ["CLIPTextModelWithProjection"]}, "not a CLIPTextModel"),
        ("tokenizer/tokenizer_config.json", {"model_max_length": 20}, "makes 20 tokens, text_encoder has 16 positions"),
    ],
)
def test_parts_that_do_not_fit_together(folder, file, change, message):
    edit(folder / file, **change)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_equal_seeds_build_equal_folders(tmp_path):
    state = torch.random.get_rng_state()
    folders = [build_tiny_flux(tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2))]
    assert torch.equal(torch.random.get_rng_state(), state)
    first, again, other = ((folder / WEIGHTS).read_bytes() for folder in folders)
    assert first == again != other
