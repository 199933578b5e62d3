"""Tiny FLUX folders, built once per session."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.flux.adapter import FluxAdapter
from omni_portable.models.flux.tiny import build_tiny_flux

VARIANTS = {
    "dev": {},
    "schnell": {"guidance_embeds": False, "dynamic_shifting": False, "vae_blocks": 3, "max_shard_size": "40KB"},
}


@pytest.fixture(scope="session")
def flux_folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("flux")
    return {name: build_tiny_flux(root / name, seed=3, **arguments) for name, arguments in VARIANTS.items()}


@pytest.fixture(scope="session")
def load_flux(flux_folders):
    """Load a variant with changes to the ModelLoad."""

    def load(variant="dev", **changes):
        arguments = {"path": flux_folders[variant], "torch_device": torch.device("cpu"), "dtype": torch.float32}
        return FluxAdapter(ModelLoad(**(arguments | changes)))

    return load
