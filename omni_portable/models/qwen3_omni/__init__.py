"""Qwen3-Omni's thinker (folders of the whole model or of the thinker alone); imports without torch."""

from __future__ import annotations

from omni_portable.contracts.registry import PluginSpec
from omni_portable.models.autoregressive.options import ChatOptions

SPEC = PluginSpec(
    name="qwen3_omni",
    summary="Qwen3-Omni thinker: text, images, videos and sound in, text out; towers frozen, talker left out",
    target="omni_portable.models.qwen3_omni.adapter:Qwen3OmniAdapter",
    options=ChatOptions,
    capabilities={
        "kinds": ("autoregressive",),
        "artifacts": {"response": "text"},
        "inputs": ("image", "video", "audio"),
        "guidance": False,
        "trainable_stage": "thinker",
        "outline": "omni_portable.models.qwen3_omni.outline:outline",
        "tiny": {
            "": "omni_portable.models.qwen3_omni.tiny:build_tiny_qwen3_omni",
            "answers": "omni_portable.models.qwen3_omni.tiny:build_answering_qwen3_omni",
        },
    },
)
