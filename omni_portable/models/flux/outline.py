"""The outline of a FLUX.1 model. Head dimensions of the published ones are those of their config files."""

from __future__ import annotations

from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.flux.folder import read_folder
from omni_portable.models.folder_outline import FolderOutline, Requests


def _requests(transformer: int, clip: int, vae: int) -> list[AttentionRequest]:
    return [
        AttentionRequest("transformer", head_dim=transformer),
        AttentionRequest("text_encoder", head_dim=clip, causal=True),
        AttentionRequest("vae", head_dim=vae),
    ]


def _read(path: Path, dtype: str, training: bool) -> Requests:
    return read_folder(path).attention_requests(dtype, training)


outline = FolderOutline(
    "flux",
    _read,
    {
        "black-forest-labs/FLUX.1-dev": _requests(128, 64, 512),
        "black-forest-labs/FLUX.1-schnell": _requests(128, 64, 512),
        "tiny:flux": _requests(16, 8, 8),
    },
)
