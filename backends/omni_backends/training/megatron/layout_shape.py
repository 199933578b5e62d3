"""What the layout of Megatron's tensors depends on; torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What the layout depends on.

    Args:
        heads: query heads.
        groups: key and value heads.
        vocabulary: tokens that the model embeds; `padded` of them are allocated, so that ranks get equal shares.
        fused_norms: the layers are Transformer Engine's.
    """

    heads: int
    groups: int
    vocabulary: int
    padded: int
    fused_norms: bool = False
