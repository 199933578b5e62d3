"""Tensors of a language model as Megatron holds them, and back: fusing, sharing among ranks, padding; all bit for bit.

`linear_qkv` interleaves by query group: (q of group 0, k of group 0, v of group 0, q of group 1, ...), so that a rank
that holds some rows of it holds whole groups. `linear_fc1` is gate above up, and a rank holds a share of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from omni_backends.training.megatron.layout_shape import Shape
from omni_backends.training.megatron.names import parts_of, place, split_of
from omni_portable.contracts.errors import WeightSyncError

PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")


def fuse(tensors: Mapping[str, torch.Tensor], shape: Shape) -> dict[str, torch.Tensor]:
    """Canonical tensors as Megatron names, fused and padded, of all ranks together.

    Raises:
        WeightSyncError: a fused tensor of which a part was not given; names it.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        where = place(name, fused_norms=shape.fused_norms)
        found.setdefault(where.name, {})[where.part] = tensor
    result: dict[str, torch.Tensor] = {}
    for name, parts in found.items():
        missing = [part for part in parts_of(name) if part not in parts]
        if missing:
            raise WeightSyncError(f"the fused tensor '{name}' lacks its part '{missing[0]}'")
        ordered = [parts[part] for part in parts_of(name)]
        result[name] = _pad(_join(ordered, shape.groups), shape) if name in PADDED else _join(ordered, shape.groups)
    return result


def unfuse(tensors: Mapping[str, torch.Tensor], names: Iterable[str], shape: Shape) -> dict[str, torch.Tensor]:
    """Inverse of :func:`fuse`, for the canonical names asked for.

    Raises:
        WeightSyncError: a tensor that Megatron's do not hold.
    """
    result: dict[str, torch.Tensor] = {}
    taken: dict[str, dict[str, torch.Tensor]] = {}
    for name in names:
        where = place(name, fused_norms=shape.fused_norms)
        if where.name not in tensors:
            raise WeightSyncError(f"Megatron's model holds no tensor '{where.name}' for '{name}'")
        if where.name not in taken:
            parts = parts_of(where.name)
            taken[where.name] = dict(zip(parts, _part(tensors[where.name], where.name, shape), strict=True))
        result[name] = taken[where.name][where.part]
    return result


def share(name: str, tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Of a whole Megatron tensor, what a tensor-parallel rank holds."""
    split = split_of(name)
    if ranks == 1 or split == "replicated":
        return tensor
    if split == "halves":
        return torch.cat([half.chunk(ranks)[rank] for half in tensor.chunk(2)])
    return tensor.chunk(ranks, dim=1 if split == "columns" else 0)[rank].contiguous()


def whole(name: str, shares: Sequence[torch.Tensor]) -> torch.Tensor:
    """Inverse of :func:`share`, from what each rank holds."""
    split = split_of(name)
    if len(shares) == 1 or split == "replicated":
        return shares[0]
    if split == "halves":
        halves = [one.chunk(2) for one in shares]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves])
    return torch.cat(list(shares), dim=1 if split == "columns" else 0)


def _join(parts: Sequence[torch.Tensor], groups: int) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return torch.cat(list(parts))
    grouped = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def _part(tensor: torch.Tensor, name: str, shape: Shape) -> Sequence[torch.Tensor]:
    parts = parts_of(name)
    if len(parts) == 1:
        return (tensor[: shape.vocabulary] if name in PADDED else tensor,)
    if len(parts) == 2:
        return tensor.chunk(2)
    grouped = tensor.reshape(shape.groups, -1, *tensor.shape[1:])
    head = grouped.shape[1] // (shape.heads // shape.groups + 2)
    q, k, v = grouped.split([grouped.shape[1] - 2 * head, head, head], dim=1)
    return tuple(part.flatten(0, 1) for part in (q, k, v))


def _pad(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    rows = shape.padded - tensor.shape[0]
    return torch.nn.functional.pad(tensor, (0, 0, 0, rows)) if rows else tensor
