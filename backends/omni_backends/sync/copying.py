"""Copying many tensors at once, for targets that write an update into their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from omni_backends.sync.staging import THREADS

PART = 4 << 20
"""Bytes of one copy; larger tensors are cut, so that all threads have work."""


def copy_into(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy every source into its target, side by side.

    Args:
        pairs: (target, source) of one shape each.
    """
    parts = [part for target, source in pairs for part in _parts(target.detach(), source.detach())]
    with torch.no_grad(), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda part: part[0].copy_(part[1]), parts))


def _parts(target: torch.Tensor, source: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if target.nbytes <= PART or not target.is_contiguous() or not source.is_contiguous():
        yield target, source
        return
    count = max(1, PART // target.element_size())
    yield from zip(target.view(-1).split(count), source.view(-1).split(count), strict=True)
