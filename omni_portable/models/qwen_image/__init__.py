"""Qwen-Image (diffusers folders of a `QwenImagePipeline`); imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

MAX_TOKENS = 1024
"""Prompt tokens that the published pipelines read at most."""


@dataclass(frozen=True)
class QwenImageOptions:
    """Keys of `model.options` for the family 'qwen_image'."""

    max_sequence_length: int = 512
    """Tokens of a prompt that are used, 1 to 1024; prompts are not padded to it."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_sequence_length <= MAX_TOKENS:
            raise ConfigError(
                f"model.options.max_sequence_length is {self.max_sequence_length}; Qwen-Image takes 1 to {MAX_TOKENS} "
                "tokens"
            )


SPEC = PluginSpec(
    name="qwen_image",
    summary="Qwen-Image: text to image, flow matching, prompts read by Qwen2.5-VL",
    target="omni_portable.models.qwen_image.adapter:QwenImageAdapter",
    options=QwenImageOptions,
    capabilities={
        "kinds": ("diffusion",),
        "artifacts": {"image": "image"},
        "inputs": (),
        "guidance": True,
        "check_extent": "omni_portable.models.qwen_image.folder:check_extent",
        "outline": "omni_portable.models.qwen_image.outline:outline",
        "tiny": {
            "": "omni_portable.models.qwen_image.tiny:build_tiny_qwen_image",
            "teacher": "omni_portable.models.qwen_image.tiny:build_tiny_qwen_image_teacher",
        },
    },
)
