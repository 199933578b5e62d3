"""Sequences of different lengths as one batch.

To score complete sequences, rows are padded on the right: under a causal mask no real token sees what follows it, so
padding needs no mask and cannot reach a number (beyond the rounding of another tensor shape). To decode, prompts are
padded on the left, so that the next token of every row stands in the same column; there the padding is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_portable.contracts.tokens import TokenInputs, TokenRow


@dataclass(frozen=True)
class Media:
    """Embeddings to be put into a batch (B, T): row and column of each, and what deepstack layers add where.

    Args:
        rows / columns: (M,) int64; embeds: (M, width).
        deep_mask: (B, T) bool, and deep: (K, V, width) in the order of the mask's True elements; None without any.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    embeds: torch.Tensor
    deep_mask: torch.Tensor | None
    deep: torch.Tensor | None


@dataclass(frozen=True)
class Packed:
    """B sequences, or B prompts, on the device.

    Args:
        ids: (B, T) int64, 0 on padding.
        positions: (A, B, T), continued over padding on the right and 0 on padding on the left.
        attended: (B, T) int64, 1 on real tokens; None where padding is on the right.
        media: None where no row has any.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    attended: torch.Tensor | None
    media: Media | None


def pack_prompts(prompts: Sequence[TokenInputs], device: torch.device) -> Packed:
    """Prompts padded on the left."""
    width = max(len(prompt["ids"]) for prompt in prompts)
    gaps = [width - len(prompt["ids"]) for prompt in prompts]
    ids = [_pad(prompt["ids"], gap, left=True) for prompt, gap in zip(prompts, gaps, strict=True)]
    positions = [_pad(prompt["positions"], gap, left=True) for prompt, gap in zip(prompts, gaps, strict=True)]
    attended = [_pad(torch.ones_like(prompt["ids"]), gap, left=True) for prompt, gap in zip(prompts, gaps, strict=True)]
    return Packed(
        torch.stack(ids).to(device),
        torch.stack(positions, dim=1).to(device),
        torch.stack(attended).to(device),
        _media(prompts, gaps, width, device),
    )


def pack_sequences(rows: Sequence[TokenRow], device: torch.device) -> Packed:
    """Prompts with their responses, padded on the right."""
    width = max(len(row.inputs["ids"]) + len(row.response_ids) for row in rows)
    ids = [torch.cat([row.inputs["ids"], row.response_ids]) for row in rows]
    positions = [continued(row.inputs["positions"], width - row.inputs["positions"].shape[-1]) for row in rows]
    return Packed(
        torch.stack([_pad(one, width - len(one), left=False) for one in ids]).to(device),
        torch.stack(positions, dim=1).to(device),
        None,
        _media([row.inputs for row in rows], [0] * len(rows), width, device),
    )


def continued(positions: torch.Tensor, count: int) -> torch.Tensor:
    """(A, P) -> (A, P + count): text goes on after the largest position of any axis."""
    after = positions.max() + 1 + torch.arange(count, dtype=positions.dtype)
    return torch.cat([positions, after.expand(positions.shape[0], count)], dim=-1)


def response_mask(rows: Sequence[TokenRow], device: torch.device) -> torch.Tensor:
    """(B, L) bool, True on the tokens of each response; L is that of the longest."""
    lengths = torch.tensor([len(row.response_ids) for row in rows])
    return (torch.arange(int(lengths.max()))[None] < lengths[:, None]).to(device)


def response_columns(rows: Sequence[TokenRow], device: torch.device) -> torch.Tensor:
    """(B, L) int64: the column whose hidden state predicts each response token; the last one's again on padding."""
    starts = torch.tensor([[len(row.inputs["ids"]) - 1] for row in rows])
    lengths = torch.tensor([[len(row.response_ids)] for row in rows])
    steps = torch.arange(int(lengths.max()))[None]
    return (starts + torch.minimum(steps, lengths - 1)).to(device)


def padded_responses(rows: Sequence[TokenRow], device: torch.device) -> torch.Tensor:
    """(B, L) int64, 0 on padding."""
    ids = [row.response_ids for row in rows]
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(device)


def _pad(tensor: torch.Tensor, count: int, *, left: bool) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (count, 0) if left else (0, count))


def _media(prompts: Sequence[TokenInputs], gaps: Sequence[int], width: int, device: torch.device) -> Media | None:
    found = [(row, prompt, gap) for row, (prompt, gap) in enumerate(zip(prompts, gaps, strict=True)) if _has(prompt)]
    if not found:
        return None
    rows = torch.cat([torch.full_like(prompt["media_at"], row) for row, prompt, _ in found])
    columns = torch.cat([prompt["media_at"] + gap for _, prompt, gap in found])
    embeds = torch.cat([prompt["media_embeds"] for _, prompt, _ in found])
    deep = [(row, prompt, gap) for row, prompt, gap in found if "deepstack" in prompt]
    mask = None
    if deep:
        mask = torch.zeros(len(prompts), width, dtype=torch.bool)
        for row, prompt, gap in deep:
            mask[row, prompt["deepstack_at"] + gap] = True
        mask = mask.to(device)
    stacked = torch.cat([prompt["deepstack"] for _, prompt, _ in deep], dim=1).to(device) if deep else None
    return Media(rows.to(device), columns.to(device), embeds.to(device), mask, stacked)


def _has(prompt: TokenInputs) -> bool:
    return "media_at" in prompt and len(prompt["media_at"]) > 0
