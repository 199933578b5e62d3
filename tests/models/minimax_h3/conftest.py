"""A tiny MiniMax-H3 folder, built once per session."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Extent
from omni_portable.models.minimax_h3 import MiniMaxH3Options
from omni_portable.models.minimax_h3.adapter import MiniMaxH3Adapter
from omni_portable.models.minimax_h3.tiny import TEXT_LAYER, build_tiny_minimax_h3

SIZE = Extent(16, 24, 22, 24.0)
ELEMENTS = 42 * 16 + 74 * 4
"""7 latent frames of 2 x 3 tokens with 16 channels; 22 frames are 37 audio latents in each of two channels of 4."""


@pytest.fixture(scope="session")
def h3_folder(tmp_path_factory):
    return build_tiny_minimax_h3(tmp_path_factory.mktemp("h3") / "model", seed=3)


@pytest.fixture(scope="session")
def load_h3(h3_folder):
    """Load with options of the family, or other components."""

    def load(*, components=("transformer", "text_encoder", "vae"), **options):
        return MiniMaxH3Adapter(
            ModelLoad(
                path=h3_folder,
                torch_device=torch.device("cpu"),
                dtype=torch.float32,
                components=components,
                options=MiniMaxH3Options(**({"text_encoder_layer": TEXT_LAYER} | options)),
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
