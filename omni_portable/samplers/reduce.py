"""Row-wise arithmetic whose bits depend on the row alone, not on its batch or the number of threads."""

from __future__ import annotations

from collections.abc import Callable

import torch


def row_mean(values: torch.Tensor) -> torch.Tensor:
    """Mean over all but the leading dimension, (B, ...) -> (B,), in the dtype of `values`.

    Library reductions choose their order of summation by the shape of the whole tensor and the thread count, so the
    same row may get other bits in another batch. Here every row is summed by the same binary tree of elementwise
    additions, an order that no shape and no device can change (and that is also the more accurate one).
    """
    flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
    count = flat.shape[1]
    if count == 0:
        raise ValueError("the mean over no elements is undefined")
    while flat.shape[1] > 1:
        if flat.shape[1] % 2:
            flat = torch.nn.functional.pad(flat, (0, 1))
        left, right = flat.unflatten(1, (2, -1)).unbind(1)
        flat = left + right
    return flat.squeeze(1) / count


def per_row(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Apply a transcendental `function` to each element of (B,) on its own.

    Vectorised log and exp treat the last few elements of a tensor by another routine than the rest; a row's bits would
    then depend on its position in the batch. B is a batch size, so the loop is short.
    """
    return torch.stack([function(value) for value in values.unbind()])


def expand_rows(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(B,) viewed as (B, 1, ..., 1) so that it broadcasts over the rows of `like` (B, ...)."""
    return values.reshape(-1, *([1] * (like.dim() - 1)))
