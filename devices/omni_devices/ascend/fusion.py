"""`torch_npu.npu_fusion_attention` under the conventions of `scaled_dot_product_attention`.

The operator's own conventions are others: True in a mask blocks, a causal mask is a compressed triangle of 2048 x 2048
with a `sparse_mode`, and a mask that is left out means full attention whatever `sparse_mode` says, without an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from omni_devices.ascend import detection

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 768
MAX_HEADS = 256

_NO_MASK = 0
_WHOLE_MASK = 1
_UPPER_LEFT_CAUSAL = 2
_TRIANGLE = 2048
"""Side of the compressed causal mask, whatever the number of tokens."""
_BLOCKED_ROWS = 2
"""`inner_precise` under which a row with every key blocked is computed rather than assumed away."""


def fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale q k^T + mask) v by the fused operator, with its backward pass.

    Args:
        query: (B, N, Sq, D), bfloat16, float16 or float32; N at most 256, D at most 768.
        key: (B, G, Sk, D) of the same dtype; G divides N (grouped-query attention).
        value: (B, G, Sk, D).
        mask: bool, True where attended, of a shape that broadcasts to (B, N, Sq, Sk).
        causal: position i attends to keys 0 to i (aligned upper left), besides the mask.
        scale: 1 / sqrt(D) where not given.

    Returns:
        (B, N, Sq, D) of the query's dtype. Rows that may attend to nothing have no meaning.

    Raises:
        ValueError: a dtype, shape or mask that the operator would misread.
    """
    _check(query, key, value)
    blocked, mode = _blocked(query, key, mask, causal)
    return _run(query, key, value, "BNSD", query.shape[1], blocked, mode, scale, mask is not None)


def fusion_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention within each of several sequences that lie end to end.

    Args:
        query: (sum of query_lengths, N, D).
        key: (sum of key_lengths, G, D).
        value: as `key`.
        query_lengths: tokens of each sequence, on the host: lengths on the device would make the operator wait for it.
        key_lengths: as many.
        causal: aligned upper left within each sequence.
        scale: 1 / sqrt(D) where not given.

    Returns:
        (sum of query_lengths, N, D).

    Raises:
        ValueError: a dtype or shape that the operator would misread, or lengths that do not add up.
    """
    _check(query, key, value)
    if len(query_lengths) != len(key_lengths):
        raise ValueError(f"{len(query_lengths)} query lengths but {len(key_lengths)} key lengths")
    if sum(query_lengths) != query.shape[0] or sum(key_lengths) != key.shape[0]:
        raise ValueError(
            f"lengths add up to {sum(query_lengths)} and {sum(key_lengths)} tokens, "
            f"not to {query.shape[0]} and {key.shape[0]}"
        )
    blocked, mode = (_triangle(query.device), _UPPER_LEFT_CAUSAL) if causal else (None, _NO_MASK)
    ends = [list(itertools.accumulate(lengths)) for lengths in (query_lengths, key_lengths)]
    return _run(query, key, value, "TND", query.shape[1], blocked, mode, scale, False, ends[0], ends[1])


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: str,
    heads: int,
    blocked: Tensor | None,
    mode: int,
    scale: float | None,
    blocked_rows: bool,
    query_ends: list[int] | None = None,
    key_ends: list[int] | None = None,
) -> Tensor:
    """The one call of the operator. Cumulative lengths come without a leading zero."""
    detection.load_torch_npu()
    import torch_npu

    if (blocked is None) != (mode == _NO_MASK):  # the operator would attend to everything and not say so
        raise ValueError(f"sparse mode {mode} {'without' if blocked is None else 'with'} a mask")
    out: Tensor = torch_npu.npu_fusion_attention(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        head_num=heads,
        input_layout=layout,
        atten_mask=blocked,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        keep_prob=1.0,
        inner_precise=_BLOCKED_ROWS if blocked_rows else 0,
        actual_seq_qlen=query_ends,
        actual_seq_kvlen=key_ends,
        sparse_mode=mode,
    )[0]
    return out


def _blocked(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor | None, int]:
    """The operator's mask (True blocks) and the mode it must come with."""
    if mask is None:
        return (_triangle(query.device), _UPPER_LEFT_CAUSAL) if causal else (None, _NO_MASK)
    if mask.dtype != torch.bool:
        raise ValueError(f"the mask is of {mask.dtype}: the operator takes bools only, and would not add it")
    whole = (*query.shape[:3], key.shape[2])
    aligned = mask[(None,) * (4 - mask.ndim)]
    if aligned.ndim != 4 or any(size not in (1, full) for size, full in zip(aligned.shape, whole, strict=True)):
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not broadcast to {whole}")
    blocked = ~aligned
    if causal:
        blocked = blocked | torch.ones(whole[2:], dtype=torch.bool, device=mask.device).triu(1)
    # The operator knows (B,N,Sq,Sk), (B,1,Sq,Sk) and (1,1,Sq,Sk), but not (1,N,Sq,Sk).
    batch, heads = whole[:2] if aligned.shape[1] > 1 else (aligned.shape[0], 1)
    return blocked.expand(batch, heads, *whole[2:]).contiguous(), _WHOLE_MASK


def _triangle(device: torch.device) -> Tensor:
    return torch.ones(_TRIANGLE, _TRIANGLE, dtype=torch.bool, device=device).triu(1)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse what the operator does not compute; in both layouts dimension 1 counts the heads."""
    if query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"query, key and value are of {query.dtype}, {key.dtype} and {value.dtype}: the operator needs "
            f"one of {', '.join(str(dtype) for dtype in DTYPES)} for all three"
        )
    if key.shape != value.shape or query.shape[-1] != key.shape[-1] or query.ndim != key.ndim:
        raise ValueError(f"shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)} do not go together")
    if query.shape[-1] > MAX_HEAD_DIM or query.shape[1] > MAX_HEADS:
        raise ValueError(
            f"{query.shape[1]} heads of {query.shape[-1]}: the operator takes {MAX_HEADS} of {MAX_HEAD_DIM} at most"
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads are no multiple of {key.shape[1]} key heads")
