"""Logits of the whole vocabulary from the ranks that hold parts of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class WholeVocabulary(torch.autograd.Function):
    """(..., V) on every rank from each rank's (..., V / ranks).

    Every rank computes the same loss from it, so the gradient of a rank's part is that part of the gradient. Megatron's
    own gather allocates on one vendor's devices only.
    """

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.rank, ctx.ranks = dist.get_rank(group), dist.get_world_size(group)
        parts = [torch.empty_like(part) for _ in range(ctx.ranks)]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].chunk(ctx.ranks, dim=-1)[ctx.rank].contiguous(), None


def whole_vocabulary(part: torch.Tensor, group: Any) -> torch.Tensor:
    """See :class:`WholeVocabulary`."""
    found: torch.Tensor = WholeVocabulary.apply(part, group)
    return found
