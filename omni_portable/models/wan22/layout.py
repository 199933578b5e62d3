"""Wan's tensor names in the rollout engine (vLLM-Omni 0.30).

`WanTransformer3DModel.load_weights` fuses the projections of self-attention (`attn1`), keeps those of cross-attention
(`attn2`), spells the feed-forward and output projections without a list, and holds the last modulation table in a
module of its own. Names of two experts start with 'transformer.' and 'transformer_2.' on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.models.fused_layout import SELF_ATTENTION
from omni_portable.models.self_attention_layout import SelfAttentionLayout

OUTPUT_TABLE, ENGINE_TABLE = "scale_shift_table", "output_scale_shift_prepare.scale_shift_table"
EXPERT_PREFIXES = ("", "transformer.", "transformer_2.")


@dataclass(frozen=True)
class WanLayout(SelfAttentionLayout):
    """See the module."""

    def rollout_name(self, name: str) -> tuple[str, str | None]:
        for prefix in EXPERT_PREFIXES:
            if name == prefix + OUTPUT_TABLE:
                return prefix + ENGINE_TABLE, None
        return super().rollout_name(name)

    def canonical_name(self, name: str, shard: str | None = None) -> str:
        for prefix in EXPERT_PREFIXES:
            if name == prefix + ENGINE_TABLE:
                return prefix + OUTPUT_TABLE
        return super().canonical_name(name, shard)


LAYOUT = WanLayout(
    fused=SELF_ATTENTION,
    renamed={"to_out.0": "to_out", "ffn.net.0": "ffn.net_0", "ffn.net.2": "ffn.net_2"},
    attentions=frozenset({"attn1"}),
)
