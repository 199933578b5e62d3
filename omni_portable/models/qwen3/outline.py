"""The outline of a Qwen3 model. Head dimensions of the published ones are those of their config files."""

from __future__ import annotations

from omni_portable.models.autoregressive.folder import grouped_heads
from omni_portable.models.folder_outline import FolderOutline, language_parts
from omni_portable.models.qwen3.folder import attention_requests

outline = FolderOutline(
    "qwen3",
    attention_requests,
    {
        "Qwen/Qwen3-0.6B": grouped_heads(128),
        "Qwen/Qwen3-1.7B": grouped_heads(128),
        "Qwen/Qwen3-4B": grouped_heads(128),
        "Qwen/Qwen3-8B": grouped_heads(128),
        "Qwen/Qwen3-14B": grouped_heads(128),
        "Qwen/Qwen3-32B": grouped_heads(128),
        "tiny:qwen3": grouped_heads(32),
        "tiny:qwen3/answers": grouped_heads(32),
    },
    count=language_parts,
    trainable="language_model",
)
