"""What an edit folder must hold beside what Qwen-Image's does."""

from __future__ import annotations

import shutil

import pytest
import torch

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.qwen_image_edit.adapter import QwenImageEditAdapter
from omni_portable.models.qwen_image_edit.tiny import build_tiny_qwen_image_edit_plus
from tests.support.model_faults import edit

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(edit_folders, tmp_path):
    """A copy to break."""
    return shutil.copytree(edit_folders["plus"], tmp_path / "model")


def load(path):
    return QwenImageEditAdapter(ModelLoad(path, torch.device("cpu"), torch.float32))


def test_missing_folder(tmp_path):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model_index.json", "processor/preprocessor_config.json", WEIGHTS])
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"{name} does not exist"):
        load(folder)


def test_another_pipeline_is_refused(folder):
    edit(folder / "model_index.json", _class_name="QwenImagePipeline")
    with pytest.raises(ModelError, match="describes a QwenImagePipeline, not a QwenImageEditPipeline or"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("text_encoder/config.json", {"vision_config": "absent"}, "lacks the key 'vision_config'"),
        ("text_encoder/config.json", {"vision_config": {"hidden_size": 16}}, "lacks the key 'num_heads'"),
        ("processor/preprocessor_config.json", {"patch_size": 16}, "patch_size is 16, that of the vision tower is 14"),
        ("processor/preprocessor_config.json", {"merge_size": 1}, "merge_size is 1"),
        ("processor/preprocessor_config.json", {"size": "absent"}, "preprocessor_config.json"),
        ("transformer/config.json", {"use_additional_t_cond": True}, "'use_additional_t_cond' is True"),
    ],
)
def test_parts_that_do_not_fit_together(folder, file, change, message):
    edit(folder / file, **change)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_equal_seeds_build_equal_folders(tmp_path):
    state = torch.random.get_rng_state()
    folders = [build_tiny_qwen_image_edit_plus(tmp_path / n, seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2))]
    assert torch.equal(torch.random.get_rng_state(), state)
    first, again, other = ((folder / WEIGHTS).read_bytes() for folder in folders)
    assert first == again != other
