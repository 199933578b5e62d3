"""Fakes of Ascend software with real arithmetic: the fusion operator as its documentation describes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tests.support.vendor import simulate
from tests.support.vendor_modules import Simulation

FOREVER = 2147483647
GARBAGE = 1e4
"""What the fake writes into rows whose keys are all blocked, where it was not told to expect such rows."""


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = FOREVER,
    next_tockens: int = FOREVER,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Any, ...]:
    """The operator on the CPU: layouts BNSD, BSND and TND, blocked-True masks, sparse modes 0 to 4."""
    assert pse is None
    assert padding_mask is None
    assert prefix is None
    assert keep_prob == 1.0
    assert query.dtype == key.dtype == value.dtype
    assert query.dtype in (torch.float16, torch.bfloat16, torch.float32)
    window = (pre_tockens, next_tockens)
    if input_layout == "TND":
        assert actual_seq_qlen is not None
        assert actual_seq_kvlen is not None
        assert query.shape[1] == head_num
        pieces = _sequences(query, key, value, actual_seq_qlen, actual_seq_kvlen)
        outs = [_attention(q, k, v, atten_mask, scale, sparse_mode, window, inner_precise) for q, k, v in pieces]
        out = torch.cat([piece[0].transpose(0, 1) for piece in outs])
    else:
        assert input_layout in ("BNSD", "BSND")
        q, k, v = (x if input_layout == "BNSD" else x.transpose(1, 2) for x in (query, key, value))
        assert q.shape[1] == head_num
        out = _attention(q, k, v, atten_mask, scale, sparse_mode, window, inner_precise)
        out = out if input_layout == "BNSD" else out.transpose(1, 2)
    return out, out.detach(), out.detach(), torch.empty(0), 0, 0, 0


def _sequences(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Sequence[int], key_ends: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Cumulative lengths without a leading zero; the last is the number of tokens."""
    assert query_ends[-1] == query.shape[0]
    assert key_ends[-1] == key.shape[0]
    assert len(query_ends) == len(key_ends)
    first = second = 0
    for query_end, key_end in zip(query_ends, key_ends, strict=True):
        assert query_end > first, "an empty sequence, or a leading zero"
        yield tuple(  # type: ignore[misc]
            x.transpose(0, 1)[None] for x in (query[first:query_end], key[second:key_end], value[second:key_end])
        )
        first, second = query_end, key_end


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    mode: int,
    window: tuple[int, int],
    inner_precise: int,
) -> Tensor:
    """(B,N,Sq,D); softmax in fp32, as the operator's is."""
    share = query.shape[1] // key.shape[1]
    assert share * key.shape[1] == query.shape[1]
    keys, values = (x.repeat_interleave(share, 1).float() for x in (key, value))
    scores = query.float() @ keys.transpose(-1, -2) * scale
    blocked = _blocked(mask, mode, window, tuple(scores.shape))
    if blocked is None:
        return (scores.softmax(-1) @ values).to(query.dtype)
    scores = scores.masked_fill(blocked, float("-inf"))
    empty = blocked.expand(scores.shape).all(-1, keepdim=True)
    out = scores.masked_fill(empty, 0.0).softmax(-1) @ values
    return out.masked_fill(empty, 0.0 if inner_precise == 2 else GARBAGE).to(query.dtype)


def _blocked(mask: Tensor | None, mode: int, window: tuple[int, int], shape: tuple[int, ...]) -> Tensor | None:
    if mask is None:
        return None  # whatever the mode says, and without a word
    assert mask.dtype in (torch.bool, torch.uint8), "the operator would misread this mask"
    batch, heads, rows, columns = shape
    offsets = torch.arange(columns)[None] - torch.arange(rows)[:, None]
    if mode in (0, 1):
        assert tuple(mask.shape) in {
            (batch, heads, rows, columns),
            (batch, 1, rows, columns),
            (1, 1, rows, columns),
            (rows, columns),
        }, f"mask of shape {tuple(mask.shape)}"
        outside = (offsets > window[1]) | (offsets < -window[0])
        return mask.bool() | outside if mode == 0 else mask.bool()
    assert tuple(mask.shape) == (2048, 2048), "modes 2 to 4 take the compressed mask"
    assert torch.equal(mask.bool(), torch.ones(2048, 2048, dtype=torch.bool).triu(1))
    if mode == 2:
        return offsets > 0
    if mode == 3:
        return offsets > columns - rows
    assert mode == 4
    right = offsets - (columns - rows)
    return (right > window[1]) | (right < -window[0])


def operator_installed(operator: Any) -> AbstractContextManager[Simulation]:
    """torch_npu with this operator, called through the real one's signature."""
    return simulate({"torch_npu.npu_fusion_attention": operator}, stack="ascend")
