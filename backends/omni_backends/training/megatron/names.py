"""Tensor names of a language model in transformers and in Megatron's GPT; torch-free.

Megatron fuses `q_proj`, `k_proj` and `v_proj` into `linear_qkv`, and `gate_proj` and `up_proj` into `linear_fc1`. Where
Transformer Engine's layers are used, the norm ahead of a fused projection is a parameter of that projection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from omni_portable.contracts.errors import CapabilityError

Part = Literal["whole", "q", "k", "v", "gate", "up"]
Split = Literal["replicated", "rows", "columns", "halves"]
"""How tensor-parallel ranks share a tensor: not at all, by dimension 0, by dimension 1, or by dimension 0 of each of
its two halves."""

FUSED: dict[str, tuple[Part, ...]] = {
    "self_attention.linear_qkv": ("q", "k", "v"),
    "mlp.linear_fc1": ("gate", "up"),
}
"""Fused projection -> order of its parts."""

_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)\.(weight|bias)$")
_OUTSIDE = {
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}
_INSIDE: dict[str, tuple[str, Part]] = {
    "self_attn.q_proj": ("self_attention.linear_qkv", "q"),
    "self_attn.k_proj": ("self_attention.linear_qkv", "k"),
    "self_attn.v_proj": ("self_attention.linear_qkv", "v"),
    "self_attn.o_proj": ("self_attention.linear_proj", "whole"),
    "self_attn.q_norm": ("self_attention.q_layernorm", "whole"),
    "self_attn.k_norm": ("self_attention.k_layernorm", "whole"),
    "mlp.gate_proj": ("mlp.linear_fc1", "gate"),
    "mlp.up_proj": ("mlp.linear_fc1", "up"),
    "mlp.down_proj": ("mlp.linear_fc2", "whole"),
}
_NORMS = {
    "input_layernorm": ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
    "post_attention_layernorm": ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
}
"""Norm -> its name among Megatron's own layers, and among Transformer Engine's."""

_SPLITS: tuple[tuple[str, Split], ...] = (
    ("layer_norm_weight", "replicated"),
    ("layernorm.weight", "replicated"),
    ("linear_fc1.weight", "halves"),
    ("linear_fc1.bias", "halves"),
    ("linear_proj.weight", "columns"),
    ("linear_fc2.weight", "columns"),
    ("linear_qkv.weight", "rows"),
    ("linear_qkv.bias", "rows"),
    ("word_embeddings.weight", "rows"),
    ("output_layer.weight", "rows"),
)


@dataclass(frozen=True)
class Place:
    """Where a canonical tensor lives in Megatron: the tensor's name, and which part of it."""

    name: str
    part: Part = "whole"


def place(name: str, *, fused_norms: bool) -> Place:
    """Megatron's place of a canonical tensor.

    Args:
        fused_norms: the layers are Transformer Engine's.

    Raises:
        CapabilityError: a name that a Qwen3 language model does not have.
    """
    if name in _OUTSIDE:
        return Place(_OUTSIDE[name])
    match = _LAYER.match(name)
    if match:
        number, path, leaf = match.groups()
        prefix = f"decoder.layers.{number}."
        if path in _NORMS and leaf == "weight":
            return Place(prefix + _NORMS[path][1 if fused_norms else 0])
        if path in _INSIDE:
            fused, part = _INSIDE[path]
            return Place(f"{prefix}{fused}.{leaf}", part)
    raise CapabilityError(
        f"train engine 'megatron' has no place for the tensor '{name}'",
        remedy="train this model with actor.engine=fsdp2 (or single)",
    )


def parts_of(name: str) -> tuple[Part, ...]:
    """Parts of a Megatron tensor in order; ('whole',) where it is not fused."""
    for fused, parts in FUSED.items():
        if name.endswith((f"{fused}.weight", f"{fused}.bias")):
            return parts
    return ("whole",)


def split_of(name: str) -> Split:
    """How tensor-parallel ranks share a Megatron tensor.

    Raises:
        CapabilityError: a tensor that the layers in use do not have.
    """
    for ending, split in _SPLITS:
        if name.endswith(ending):
            return split
    raise CapabilityError(f"train engine 'megatron' does not know how ranks share the tensor '{name}'")
