"""The outline of a Qwen-VL model. Head dimensions of the published ones are those of their config files."""

from __future__ import annotations

from omni_portable.models.autoregressive.folder import grouped_heads
from omni_portable.models.folder_outline import FolderOutline, language_parts
from omni_portable.models.qwen_vl.folder import attention_requests

outline = FolderOutline(
    "qwen_vl",
    attention_requests,
    {
        "Qwen/Qwen2.5-VL-3B-Instruct": grouped_heads(128),
        "Qwen/Qwen2.5-VL-7B-Instruct": grouped_heads(128),
        "Qwen/Qwen2.5-VL-32B-Instruct": grouped_heads(128),
        "Qwen/Qwen2.5-VL-72B-Instruct": grouped_heads(128),
        "Qwen/Qwen3-VL-2B-Instruct": grouped_heads(128),
        "Qwen/Qwen3-VL-4B-Instruct": grouped_heads(128),
        "Qwen/Qwen3-VL-8B-Instruct": grouped_heads(128),
        "Qwen/Qwen3-VL-32B-Instruct": grouped_heads(128),
        "tiny:qwen_vl": grouped_heads(32),
        "tiny:qwen_vl/qwen2_5": grouped_heads(8),
        "tiny:qwen_vl/answers": grouped_heads(32),
        "tiny:qwen_vl/knows": grouped_heads(32),
    },
    count=language_parts,
    trainable="language_model",
)
