"""The outline of an LTX-2 model. Head dimensions of the published ones are the defaults of the library's transformer,
and those of Gemma 3 12B; their config files were not read."""

from __future__ import annotations

from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.folder_outline import FolderOutline, Requests
from omni_portable.models.ltx2.folder import read_folder


def _requests(video: int, audio: int, text: int) -> list[AttentionRequest]:
    return [
        AttentionRequest("transformer", head_dim=video),
        AttentionRequest("transformer", head_dim=audio),
        AttentionRequest("text_encoder", head_dim=text, mask="dense", causal=True, grouped_query=True),
    ]


def _read(path: Path, dtype: str, training: bool) -> Requests:
    return read_folder(path).attention_requests(dtype, training)


outline = FolderOutline(
    "ltx2",
    _read,
    {
        "Lightricks/LTX-2": _requests(128, 64, 256),
        "diffusers/LTX-2.3-Diffusers": _requests(128, 64, 256),
        "tiny:ltx2": _requests(16, 8, 8),
    },
)
