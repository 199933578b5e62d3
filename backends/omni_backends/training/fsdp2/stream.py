"""The weights as a stream: whole tensors, gathered bucket by bucket when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import WeightManifest

BUCKET_BYTES = 64 << 20
"""Whole tensors that exist at one time, on the first rank and on the way, unless a single one is larger."""


class GatheredStream:
    """Implements `contracts.weights.PiecewiseStream`.

    Args:
        manifest: of the whole tensors.
        sizes: bytes of each.
        gather: names -> whole tensors.
        version: a number that grows with every change of the weights.
        limit: bytes of whole tensors that are made at a time (a larger one alone).
    """

    def __init__(
        self,
        manifest: WeightManifest,
        sizes: Mapping[str, int],
        gather: Callable[[Sequence[str]], Mapping[str, torch.Tensor]],
        version: Callable[[], int],
        limit: int = BUCKET_BYTES,
    ) -> None:
        self.manifest = manifest
        self._sizes, self._gather, self._version, self._limit = sizes, gather, version, limit
        self._made_at = version()
        self._delivered = False

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for piece in self.pieces():
            yield from piece.items()
            del piece  # before the next one is made

    def pieces(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """Bucket by bucket, each gathered when it is asked for."""
        if self._delivered:
            raise WeightSyncError(
                "a weight stream was read twice", remedy="ask the train engine for a new one with weights()"
            )
        self._delivered = True
        for names in buckets(self._sizes, self._limit):
            if self._version() != self._made_at:
                raise WeightSyncError(
                    "the weights changed while they were read", remedy="read a stream before the next train step"
                )
            yield self._gather(names)


def buckets(sizes: Mapping[str, int], limit: int = BUCKET_BYTES) -> Iterator[list[str]]:
    """Names in order, in lists of at most `limit` bytes or of one tensor."""
    names: list[str] = []
    size = 0
    for name, more in sizes.items():
        if names and size + more > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += more
    if names:
        yield names
