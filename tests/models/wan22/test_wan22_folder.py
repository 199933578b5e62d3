"""Folders that are incomplete, of another kind, or do not fit together."""

from __future__ import annotations

import shutil

import pytest
import torch

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.wan22.adapter import Wan22Adapter
from omni_portable.models.wan22.folder import read_folder
from omni_portable.models.wan22.schedule import folder_shift
from omni_portable.models.wan22.tiny import build_tiny_wan22
from tests.support.model_faults import edit


@pytest.fixture
def folder(wan_folders, tmp_path):
    return shutil.copytree(wan_folders["t2v"], tmp_path / "wan")


def test_what_the_variants_say_of_themselves(wan_folders):
    t2v, i2v, ti2v = (read_folder(wan_folders[name]) for name in ("t2v", "i2v", "ti2v"))
    assert (t2v.boundary_ratio, i2v.boundary_ratio, ti2v.boundary_ratio) == (0.875, 0.9, None)
    assert [f.from_image for f in (t2v, i2v, ti2v)] == [False, True, False]
    assert [f.per_token_timesteps for f in (t2v, i2v, ti2v)] == [False, False, True]
    assert [f.condition_channels for f in (t2v, i2v, ti2v)] == [0, 8, 0]
    assert t2v.tokens(Extent(32, 48, 9, 8.0)) == 3 * 2 * 3


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, "describes a FluxPipeline, not a WanPipeline"),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderKL"]}, "lists 'vae' as AutoencoderKL"),
        ("model_index.json", {"transformer_2": ["diffusers", "X"]}, "lists 'transformer_2' as X"),
        ("model_index.json", {"boundary_ratio": None}, "two transformers and boundary_ratio None"),
        ("model_index.json", {"boundary_ratio": 1.5}, "boundary_ratio 1.5"),
        ("model_index.json", {"transformer_2": [None, None]}, "one transformer and boundary_ratio 0.875"),
        ("transformer/config.json", {"patch_size": [2, 2]}, "does not have three numbers"),
        ("transformer/config.json", {"patch_size": "absent"}, "'patch_size' is None"),
        ("transformer/config.json", {"attention_head_dim": 0}, "'attention_head_dim' is 0"),
        ("transformer/config.json", {"in_channels": 12}, "in_channels is 12, what the pipeline gives it to read is 4"),
        ("transformer/config.json", {"text_dim": 8}, "text_dim is 8, text encoder d_model is 32"),
        ("transformer/config.json", {"image_dim": 1280}, "'image_dim' is 1280"),
        ("transformer_2/config.json", {"num_attention_heads": 4}, "heads is 2, transformer_2 num_attention_heads is 4"),
        ("vae/config.json", {"latents_mean": [0.0]}, "latents_mean is 1, VAE z_dim is 4"),
        ("vae/config.json", {"latents_std": "x"}, "'latents_std' is 'x'"),
        ("vae/config.json", {"z_dim": "absent"}, "lacks the key 'z_dim'"),
    ],
)
def test_faults_are_named(folder, file, changes, message):
    edit(folder / file, **changes)
    with pytest.raises(ModelError, match=message):
        read_folder(folder)


@pytest.mark.parametrize("part", ["transformer_2", "vae", "text_encoder", "tokenizer"])
def test_missing_weights_and_vocabularies_are_named(folder, part):
    name = {"text_encoder": "model.safetensors", "tokenizer": "tokenizer.json"}.get(
        part, "diffusion_pytorch_model.safetensors"
    )
    (folder / part / name).unlink()
    with pytest.raises(ModelError, match=part):
        Wan22Adapter(ModelLoad(folder, torch.device("cpu"), torch.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_class_name": "DDIMScheduler"}, "'DDIMScheduler' is none that Wan 2.2 uses"),
        ({"use_flow_sigmas": False}, "does not describe flow matching"),
        ({"flow_shift": "x"}, "'flow_shift' is 'x'"),
    ],
)
def test_other_schedulers_are_refused(folder, changes, message):
    edit(folder / "scheduler" / "scheduler_config.json", **changes)
    with pytest.raises(ModelError, match=message):
        folder_shift(read_folder(folder).scheduler)


def test_equal_seeds_build_equal_folders(tmp_path):
    state = torch.random.get_rng_state()
    first, again, other = (build_tiny_wan22(tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = "transformer_2/diffusion_pytorch_model.safetensors"
    assert (first / weights).read_bytes() == (again / weights).read_bytes()
    assert (first / weights).read_bytes() != (other / weights).read_bytes()
