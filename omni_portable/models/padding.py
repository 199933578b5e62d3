"""Conditioning whose tensors differ in length between prompts: stacked and joined with padding that does not matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.diffusers_adapter import stack_conditionings


def pad_to(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """(N, ...) with zeros after it, (length, ...)."""
    missing = length - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


def stack_padded(conditionings: Sequence[Conditioning], padded: Sequence[str], mask: str) -> Conditioning:
    """Stack B conditionings, the tensors named in `padded` padded with zeros to the longest of each.

    Args:
        mask: name under which (B, tokens) bool, true where `padded[0]` is no padding, is added where any of it is. A
            mask in which nothing is false is left out: kernels without one are faster, and nothing has to look into it.

    Raises:
        ModelError: tensors that cannot be stacked even so.
    """
    longest = {name: max(c[name].shape[0] for c in conditionings) for name in padded}
    lengths = [conditioning[padded[0]].shape[0] for conditioning in conditionings]
    batch = stack_conditionings(
        [{n: pad_to(t, longest[n]) if n in longest else t for n, t in c.items()} for c in conditionings]
    )
    if len(set(lengths)) > 1:
        device = batch[padded[0]].device
        positions = torch.arange(longest[padded[0]], device=device)
        batch[mask] = positions < torch.tensor(lengths, device=device)[:, None]
    return batch


def join_padded(first: Conditioning, second: Conditioning, padded: Sequence[str], mask: str) -> Conditioning:
    """Two batches of B rows as one of 2 B, the shorter tensors of either padded; `padded[0]` is what the mask is of."""
    joined: Conditioning = {}
    for name, tensor in second.items():
        if name != mask:
            joined[name] = torch.cat(_same_length(first[name], tensor) if name in padded else (first[name], tensor))
    masks = [_mask(half, padded[0], mask) for half in (first, second)]
    if mask in first or mask in second or masks[0].shape != masks[1].shape:
        joined[mask] = torch.cat(_same_length(*masks))
    return joined


def _mask(batch: Conditioning, name: str, mask: str) -> torch.Tensor:
    found = batch.get(mask)
    return found if found is not None else batch[name].new_ones(batch[name].shape[:2], dtype=torch.bool)


def _same_length(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both (B, N, ...) with zeros after the shorter one."""
    length = max(first.shape[1], second.shape[1])
    one, other = (pad_to(tensor.transpose(0, 1), length).transpose(0, 1) for tensor in (first, second))
    return one, other
