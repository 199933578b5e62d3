"""Qwen3 language models (transformers folders of a `Qwen3ForCausalLM`); imports without torch."""

from __future__ import annotations

from omni_portable.contracts.registry import PluginSpec
from omni_portable.models.autoregressive.options import ChatOptions

SPEC = PluginSpec(
    name="qwen3",
    summary="Qwen3: text in, text out",
    target="omni_portable.models.qwen3.adapter:Qwen3Adapter",
    options=ChatOptions,
    capabilities={
        "kinds": ("autoregressive",),
        "artifacts": {"response": "text"},
        "inputs": (),
        "guidance": False,
        "trainable_stage": "language_model",
        "outline": "omni_portable.models.qwen3.outline:outline",
        "tiny": {
            "": "omni_portable.models.qwen3.tiny:build_tiny_qwen3",
            "answers": "omni_portable.models.qwen3.tiny:build_answering_qwen3",
        },
    },
)
