"""Qwen2.5-VL and Qwen3-VL (transformers folders of their `...ForConditionalGeneration`); imports without torch."""

from __future__ import annotations

from omni_portable.contracts.registry import PluginSpec
from omni_portable.models.autoregressive.options import ChatOptions

SPEC = PluginSpec(
    name="qwen_vl",
    summary="Qwen2.5-VL / Qwen3-VL: text, images and videos in, text out; the vision tower is frozen",
    target="omni_portable.models.qwen_vl.adapter:QwenVLAdapter",
    options=ChatOptions,
    capabilities={
        "kinds": ("autoregressive",),
        "artifacts": {"response": "text"},
        "inputs": ("image", "video"),
        "guidance": False,
        "trainable_stage": "language_model",
        "outline": "omni_portable.models.qwen_vl.outline:outline",
        "tiny": {
            "": "omni_portable.models.qwen_vl.tiny:build_tiny_qwen3_vl",
            "qwen2_5": "omni_portable.models.qwen_vl.tiny:build_tiny_qwen2_5_vl",
            "answers": "omni_portable.models.qwen_vl.tiny:build_answering_qwen3_vl",
            "knows": "omni_portable.models.qwen_vl.tiny:build_knowing_qwen3_vl",
        },
    },
)
