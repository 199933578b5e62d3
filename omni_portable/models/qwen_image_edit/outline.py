"""The outline of a Qwen-Image-Edit model. Head dimensions of the published ones are those of their config files."""

from __future__ import annotations

from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.folder_outline import FolderOutline, Requests
from omni_portable.models.qwen_image.outline import requests
from omni_portable.models.qwen_image_edit.folder import read_folder

_PUBLISHED = (*requests(128, 128, 384), AttentionRequest("text_encoder", head_dim=80))
_TINY = (*requests(16, 8, 8), AttentionRequest("text_encoder", head_dim=8))


def _read(path: Path, dtype: str, training: bool) -> Requests:
    return read_folder(path).attention_requests(dtype, training)


outline = FolderOutline(
    "qwen_image_edit",
    _read,
    {
        "Qwen/Qwen-Image-Edit": _PUBLISHED,
        "Qwen/Qwen-Image-Edit-2509": _PUBLISHED,
        "Qwen/Qwen-Image-Edit-2511": _PUBLISHED,
        "tiny:qwen_image_edit": _TINY,
        "tiny:qwen_image_edit/first": _TINY,
    },
)
