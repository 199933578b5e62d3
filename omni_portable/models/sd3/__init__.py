"""Stable Diffusion 3 and 3.5 (diffusers folders of a `StableDiffusion3Pipeline`); imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

LORA_TARGETS = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)
"""All projections of the joint attention (Flow-GRPO's SD3 recipe)."""


@dataclass(frozen=True)
class SD3Options:
    """Keys of `model.options` for the family 'sd3'."""

    max_sequence_length: int = 256
    """T5 tokens of a prompt, 1 to 512; without a T5 as many zero embeddings take their place, as in the stock
    pipeline."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_sequence_length <= 512:
            raise ConfigError(
                f"model.options.max_sequence_length is {self.max_sequence_length}; SD3 takes 1 to 512 tokens"
            )


SPEC = PluginSpec(
    name="sd3",
    summary="Stable Diffusion 3 / 3.5: text to image, flow matching, two CLIPs and an optional T5",
    target="omni_portable.models.sd3.adapter:SD3Adapter",
    options=SD3Options,
    capabilities={
        "kinds": ("diffusion",),
        "artifacts": {"image": "image"},
        "inputs": (),
        "guidance": True,
        "check_extent": "omni_portable.models.sd3.folder:check_extent",
        "outline": "omni_portable.models.sd3.outline:outline",
        "tiny": {
            "": "omni_portable.models.sd3.tiny:build_tiny_sd3",
            "teacher": "omni_portable.models.sd3.tiny:build_tiny_sd3_teacher",
        },
    },
)
