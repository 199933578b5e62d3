"""The outline of a Qwen-Image model. Head dimensions of the published one are those of its config files."""

from __future__ import annotations

from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.folder_outline import FolderOutline, Requests
from omni_portable.models.qwen_image.folder import read_folder


def requests(transformer: int, text: int, vae: int) -> list[AttentionRequest]:
    """As `QwenImageFolder.attention_requests`, by head dimensions."""
    return [
        AttentionRequest("transformer", head_dim=transformer, mask="padding"),
        AttentionRequest("text_encoder", head_dim=text, causal=True, grouped_query=True),
        AttentionRequest("vae", head_dim=vae),
    ]


def _read(path: Path, dtype: str, training: bool) -> Requests:
    return read_folder(path).attention_requests(dtype, training)


outline = FolderOutline(
    "qwen_image",
    _read,
    {
        "Qwen/Qwen-Image": requests(128, 128, 384),
        "tiny:qwen_image": requests(16, 8, 8),
        "tiny:qwen_image/teacher": requests(16, 8, 8),
    },
)
