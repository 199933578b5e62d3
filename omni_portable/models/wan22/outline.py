"""The outline of a Wan 2.2 model. Head dimensions of the published ones are those of their config files."""

from __future__ import annotations

from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.folder_outline import FolderOutline, Requests
from omni_portable.models.wan22.folder import read_folder

_PUBLISHED = (AttentionRequest("transformer", head_dim=128),)
_TINY = (AttentionRequest("transformer", head_dim=12),)


def _read(path: Path, dtype: str, training: bool) -> Requests:
    return read_folder(path).attention_requests(dtype, training)


outline = FolderOutline(
    "wan22",
    _read,
    {
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers": _PUBLISHED,
        "Wan-AI/Wan2.2-I2V-A14B-Diffusers": _PUBLISHED,
        "Wan-AI/Wan2.2-TI2V-5B-Diffusers": _PUBLISHED,
        "tiny:wan22": _TINY,
        "tiny:wan22/i2v": _TINY,
        "tiny:wan22/ti2v": _TINY,
    },
)
