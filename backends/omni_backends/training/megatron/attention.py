"""Causal attention of Megatron's layers by torch's own kernel, on any device.

Megatron's `DotProductAttention` allocates on one vendor's devices only, and its other implementations come with
Transformer Engine; a layer specification takes any module in their place.
"""

from __future__ import annotations

from typing import Any

import torch

from omni_portable.contracts.errors import CapabilityError


class CausalAttention(torch.nn.Module):
    """The place that `core_attention` has in a layer's specification, with its signature.

    Args:
        config: Megatron's TransformerConfig.
        layer_number / attn_mask_type / attention_type / attention_dropout / softmax_scale / cp_comm_type /
            pg_collection: as Megatron gives them; a mask other than causal is refused.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__()
        if attn_mask_type.name != "causal" or attention_type != "self":
            raise CapabilityError(f"layer {layer_number} asks for {attn_mask_type.name} {attention_type}-attention")
        if attention_dropout or config.attention_dropout:
            raise CapabilityError(f"layer {layer_number} asks for attention with dropout")
        self._scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """(T, B, heads x width) from queries (T, B, heads, width) and keys and values (T, B, groups, width)."""
        if attention_mask is not None or attention_bias is not None or packed_seq_params is not None:
            raise CapabilityError("train engine 'megatron' runs plain causal attention, without masks, bias or packing")
        q, k, v = (one.permute(1, 2, 0, 3) for one in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self._scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        return found.permute(2, 0, 1, 3).flatten(2)
