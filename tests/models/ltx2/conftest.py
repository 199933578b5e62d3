"""A tiny LTX-2.3 folder, built once per session."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.ltx2 import LTX2Options
from omni_portable.models.ltx2.adapter import LTX2Adapter
from omni_portable.models.ltx2.tiny import build_tiny_ltx2

SIZE = Extent(64, 96, 9, 24.0)
TOKENS = 16


@pytest.fixture(scope="session")
def ltx_folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("ltx2")
    return {
        "2.3": build_tiny_ltx2(root / "new", seed=3),
        "2.0": build_tiny_ltx2(root / "old", seed=4, bandwidth_extension=False),
    }


@pytest.fixture(scope="session")
def load_ltx(ltx_folders):
    """Load a variant with options of the family, or other components."""

    def load(variant="2.3", *, components=("transformer", "text_encoder", "vae"), **options):
        return LTX2Adapter(
            ModelLoad(
                path=ltx_folders[variant],
                torch_device=torch.device("cpu"),
                dtype=torch.float32,
                components=components,
                options=LTX2Options(**({"max_sequence_length": TOKENS} | options)),
            )
        )

    return load
