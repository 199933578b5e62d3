"""The outline of a MiniMax-H3 model. Head dimensions of the published one are the defaults of the library's class, and
those of the Qwen3-VL as wide as its text input (5120); its config files were not read."""

from __future__ import annotations

from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.folder_outline import FolderOutline, Requests
from omni_portable.models.minimax_h3.folder import read_folder


def _requests(transformer: int, text: int) -> list[AttentionRequest]:
    return [
        AttentionRequest("transformer", head_dim=transformer),
        AttentionRequest("text_encoder", head_dim=text, causal=True, grouped_query=True),
    ]


def _read(path: Path, dtype: str, training: bool) -> Requests:
    return read_folder(path).attention_requests(dtype, training)


outline = FolderOutline(
    "minimax_h3",
    _read,
    {
        "MiniMaxAI/MiniMax-H3": _requests(128, 128),
        "tiny:minimax_h3": _requests(16, 16),
    },
)
