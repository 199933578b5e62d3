"""Folders that are incomplete, of another kind, or do not fit together."""

from __future__ import annotations

import shutil

import pytest
import torch

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.minimax_h3 import MiniMaxH3Options
from omni_portable.models.minimax_h3.adapter import MiniMaxH3Adapter
from omni_portable.models.minimax_h3.folder import read_folder
from omni_portable.models.minimax_h3.tiny import build_tiny_minimax_h3
from tests.support.model_faults import edit


@pytest.fixture
def folder(h3_folder, tmp_path):
    return shutil.copytree(h3_folder, tmp_path / "h3")


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("modular_model_index.json", {"_class_name": "WanModularPipeline"}, "describes a WanModularPipeline"),
        ("scheduler/scheduler_config.json", {"_class_name": "X"}, "describes a X, not a MiniMaxH3Scheduler"),
        ("audio_scheduler/scheduler_config.json", {"shift": 0}, "'shift' is 0"),
        ("transformer/config.json", {"in_channels": 8}, "in_channels is 8, VAE latent_channels is 4"),
        ("transformer/config.json", {"text_dim": 8}, "text_dim is 8, text encoder hidden_size is 32"),
        ("transformer/config.json", {"patch_size": [2, 2, 2]}, "a patch of one frame and equal sides"),
        ("transformer/config.json", {"audio_in_channels": "absent"}, "lacks the key 'audio_in_channels'"),
        ("vae/config.json", {"latents_mean": [0.0]}, "latents_mean is 1, VAE latent_channels is 4"),
        ("vae/config.json", {"spatial_downsample_factors": []}, r"'spatial_downsample_factors' is \[\]"),
        ("audio_vae/config.json", {"sampling_rate": 3200}, "latents per second is 80.0"),
        ("text_encoder/config.json", {"text_config": None}, "has no text_config"),
    ],
)
def test_faults_are_named(folder, file, changes, message):
    edit(folder / file, **changes)
    with pytest.raises(ModelError, match=message):
        read_folder(folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        read_folder(tmp_path / "nothing")
    with pytest.raises(ModelError, match="modular_model_index.json does not exist"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("transformer", "diffusion_pytorch_model.safetensors"),
        ("audio_vae", "diffusion_pytorch_model.safetensors"),
        ("text_encoder", "model.safetensors"),
        ("processor", "preprocessor_config.json"),
        ("tokenizer", "tokenizer.json"),
    ],
)
def test_missing_files_are_named(folder, part, name):
    (folder / part / name).unlink()
    with pytest.raises(ModelError, match=part):
        MiniMaxH3Adapter(
            ModelLoad(folder, torch.device("cpu"), torch.float32, options=MiniMaxH3Options(text_encoder_layer=2))
        )


def test_equal_seeds_build_equal_folders(tmp_path):
    first, again, other = (build_tiny_minimax_h3(tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    for part in ("transformer", "audio_vae"):
        weights = f"{part}/diffusion_pytorch_model.safetensors"
        assert (first / weights).read_bytes() == (again / weights).read_bytes()
        assert (first / weights).read_bytes() != (other / weights).read_bytes()
