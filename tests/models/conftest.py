"""Tiny SD3 folders, built once per session."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.sd3.adapter import SD3Adapter
from omni_portable.models.sd3.tiny import build_tiny_sd3

ALL_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
VARIANTS = {
    "clip": {},
    "t5": {"encoders": ALL_ENCODERS, "clip_tokens": 20, "vae_blocks": 3},
    "sd35": {
        "dual_attention_layers": (0,),
        "qk_norm": "rms_norm",
        "dynamic_shifting": True,
        "max_shard_size": "20KB",
        "latent_channels": 8,
    },
}


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sd3")
    return {name: build_tiny_sd3(root / name, seed=3, **arguments) for name, arguments in VARIANTS.items()}


@pytest.fixture(scope="session")
def load_tiny(tiny_folders):
    """Load a variant with changes to the ModelLoad."""

    def load(variant="clip", **changes):
        arguments = {"path": tiny_folders[variant], "torch_device": torch.device("cpu"), "dtype": torch.float32}
        return SD3Adapter(ModelLoad(**(arguments | changes)))

    return load
