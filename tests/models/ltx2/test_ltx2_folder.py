"""Folders that are incomplete, of another kind, or do not fit together."""

from __future__ import annotations

import shutil

import pytest
import torch

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.ltx2.adapter import LTX2Adapter
from omni_portable.models.ltx2.folder import read_folder
from omni_portable.models.ltx2.tiny import build_tiny_ltx2
from tests.support.model_faults import edit


@pytest.fixture
def folder(ltx_folders, tmp_path):
    return shutil.copytree(ltx_folders["2.3"], tmp_path / "ltx")


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("model_index.json", {"_class_name": "WanPipeline"}, "describes a WanPipeline, not a LTX2Pipeline"),
        ("model_index.json", {"vocoder": ["x", "Y"]}, "lists 'vocoder' as Y"),
        ("model_index.json", {"text_encoder": ["transformers", "T5EncoderModel"]}, "lists 'text_encoder' as T5"),
        ("transformer/config.json", {"in_channels": 4}, "in_channels is 4, VAE latent_channels is 8"),
        ("transformer/config.json", {"audio_in_channels": 4}, "audio_in_channels is 4, the audio VAE's .* is 8"),
        ("transformer/config.json", {"patch_size": 2}, "patches of one latent"),
        ("transformer/config.json", {"vae_scale_factors": [8, 32]}, "does not have three numbers"),
        ("transformer/config.json", {"audio_hop_length": "absent"}, "lacks the key 'audio_hop_length'"),
        ("vae/config.json", {"spatial_compression_ratio": 16}, "spatial_compression_ratio is 16"),
        ("vae/config.json", {"decoder_inject_noise": [False, True]}, "makes decoding random"),
        ("audio_vae/config.json", {"sample_rate": 8000}, "audio_sampling_rate is 1600, audio VAE sample_rate is 8000"),
        ("vocoder/config.json", {"output_sampling_rate": None}, "'output_sampling_rate' is None"),
    ],
)
def test_faults_are_named(folder, file, changes, message):
    edit(folder / file, **changes)
    with pytest.raises(ModelError, match=message):
        read_folder(folder)


@pytest.mark.parametrize("part", ["connectors", "audio_vae", "vocoder", "text_encoder", "tokenizer"])
def test_missing_weights_and_vocabularies_are_named(folder, part):
    name = {"text_encoder": "model.safetensors", "tokenizer": "tokenizer.json"}.get(
        part, "diffusion_pytorch_model.safetensors"
    )
    (folder / part / name).unlink()
    with pytest.raises(ModelError, match=part):
        LTX2Adapter(ModelLoad(folder, torch.device("cpu"), torch.float32))


def test_equal_seeds_build_equal_folders(tmp_path):
    first, again, other = (build_tiny_ltx2(tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    for part in ("transformer", "vocoder"):
        weights = f"{part}/diffusion_pytorch_model.safetensors"
        assert (first / weights).read_bytes() == (again / weights).read_bytes()
        assert (first / weights).read_bytes() != (other / weights).read_bytes()
