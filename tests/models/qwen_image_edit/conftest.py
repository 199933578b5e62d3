"""Tiny Qwen-Image-Edit folders, built once per session."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.qwen_image_edit import QwenImageEditOptions
from omni_portable.models.qwen_image_edit.adapter import QwenImageEditAdapter
from omni_portable.models.qwen_image_edit.tiny import build_tiny_qwen_image_edit, build_tiny_qwen_image_edit_plus

SMALL = QwenImageEditOptions(vae_pixels=64 * 64, condition_pixels=224 * 224)


@pytest.fixture(scope="session")
def edit_folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("qwen_image_edit")
    return {
        "first": build_tiny_qwen_image_edit(root / "first", seed=3),
        "plus": build_tiny_qwen_image_edit_plus(root / "plus", seed=3, zero_cond_t=False),
        "2511": build_tiny_qwen_image_edit_plus(root / "2511", seed=3),
    }


@pytest.fixture(scope="session")
def load_edit(edit_folders):
    """Load a variant with changes to the ModelLoad; input images are small."""

    def load(variant="2511", **changes):
        arguments = {
            "path": edit_folders[variant],
            "torch_device": torch.device("cpu"),
            "dtype": torch.float32,
            "options": SMALL,
        }
        return QwenImageEditAdapter(ModelLoad(**(arguments | changes)))

    return load


@pytest.fixture(scope="session")
def picture():
    """`picture(height, width, seed)`: an input image, smooth enough to be resized."""

    def make(height=40, width=56, seed=0, name="image"):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randint(0, 256, (1, 3, 5, 7), generator=generator).float()
        pixels = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0]
        return MediaArtifact(name, "image", pixels.round().to(torch.uint8), "CHW")

    return make
