"""The outline of a Qwen3-Omni thinker. Head dimensions of the published one are those of its config file."""

from __future__ import annotations

from functools import partial

from omni_portable.models.autoregressive.folder import grouped_heads
from omni_portable.models.folder_outline import FolderOutline, language_parts
from omni_portable.models.qwen3_omni.folder import LEFT_OUT, attention_requests

outline = FolderOutline(
    "qwen3_omni",
    attention_requests,
    {
        "Qwen/Qwen3-Omni-30B-A3B-Instruct": grouped_heads(128),
        "Qwen/Qwen3-Omni-30B-A3B-Thinking": grouped_heads(128),
        "tiny:qwen3_omni": grouped_heads(32),
        "tiny:qwen3_omni/answers": grouped_heads(32),
    },
    count=partial(language_parts, left_out=LEFT_OUT),
    trainable="language_model",
)
