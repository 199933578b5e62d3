"""Tiny Wan 2.2 folders, built once per session."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.wan22 import Wan22Options
from omni_portable.models.wan22.adapter import Wan22Adapter
from omni_portable.models.wan22.tiny import build_tiny_wan22, build_tiny_wan22_i2v, build_tiny_wan22_ti2v

SIZE = Extent(32, 48, 9, 8.0)
TOKENS = 16
BUILDERS = {"t2v": build_tiny_wan22, "i2v": build_tiny_wan22_i2v, "ti2v": build_tiny_wan22_ti2v}


@pytest.fixture(scope="session")
def wan_folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("wan22")
    return {name: build(root / name, seed=3) for name, build in BUILDERS.items()}


@pytest.fixture(scope="session")
def load_wan(wan_folders):
    """Load a variant with options of the family, or changes to the ModelLoad."""

    def load(variant="t2v", *, components=("transformer", "text_encoder", "vae"), **options):
        return Wan22Adapter(
            ModelLoad(
                path=wan_folders[variant],
                torch_device=torch.device("cpu"),
                dtype=torch.float32,
                components=components,
                options=Wan22Options(**({"max_sequence_length": TOKENS} | options)),
            )
        )

    return load


@pytest.fixture(scope="session")
def frames():
    """'first_frame' and 'last_frame' of the tests' size."""
    generator = torch.Generator().manual_seed(5)
    shape = (3, SIZE.height, SIZE.width)
    return {
        name: MediaArtifact(name, "image", torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), "CHW")
        for name in ("first_frame", "last_frame")
    }
