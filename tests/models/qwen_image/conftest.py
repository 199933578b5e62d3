"""Tiny Qwen-Image folders, built once per session."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.qwen_image.adapter import QwenImageAdapter
from omni_portable.models.qwen_image.tiny import build_tiny_qwen_image

VARIANTS = {"small": {}, "deep": {"vae_stages": 3, "latent_channels": 8, "max_shard_size": "40KB"}}


@pytest.fixture(scope="session")
def qwen_folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("qwen_image")
    return {name: build_tiny_qwen_image(root / name, seed=3, **arguments) for name, arguments in VARIANTS.items()}


@pytest.fixture(scope="session")
def load_qwen(qwen_folders):
    """Load a variant with changes to the ModelLoad."""

    def load(variant="small", **changes):
        arguments = {"path": qwen_folders[variant], "torch_device": torch.device("cpu"), "dtype": torch.float32}
        return QwenImageAdapter(ModelLoad(**(arguments | changes)))

    return load
