"""Which prompts a step uses: a pure function of (seed, step), so that the step is the whole position in the data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, TypeVar

from omni_portable.contracts.errors import DataError

Row = TypeVar("Row")


class PromptSampler(Generic[Row]):
    """Batches over endless epochs; each epoch is a fresh permutation that uses every row exactly once.

    Where a batch spans two epochs, the second one begins with rows that the batch does not hold yet: no batch holds a
    row twice. The order depends on nothing but the arguments (Python documents its generator as stable).

    Args:
        rows: at least `batch_size` of them.
        batch_size: rows per step.
        shuffle: False keeps the order of the rows in every epoch.
        seed: of the permutations.

    Raises:
        DataError: fewer rows than `batch_size`.
    """

    def __init__(self, rows: Sequence[Row], batch_size: int, shuffle: bool, seed: int) -> None:
        if not 0 < batch_size <= len(rows):
            raise DataError(
                f"data.train_batch_size={batch_size} needs at least as many different prompts, there are {len(rows)}",
                remedy=f"set it between 1 and {len(rows)}, or add prompts",
            )
        self._rows, self._batch_size, self._shuffle, self._seed = rows, batch_size, shuffle, seed
        self._known: tuple[int, list[int]] = (-1, [])

    def batch(self, step: int) -> list[Row]:
        """The rows of step 0, 1, 2, ...; equal steps give equal batches, in whatever order they are asked for."""
        if step < 0:
            raise ValueError(f"step {step} is negative")
        start, count = step * self._batch_size, len(self._rows)
        positions = range(start, start + self._batch_size)
        return [self._rows[self._order(p // count)[p % count]] for p in positions]

    def _order(self, epoch: int) -> Sequence[int]:
        """Row indices of an epoch. It may depend on the end of the epoch before, so epochs are built upwards."""
        if not self._shuffle:
            return range(len(self._rows))
        known, order = self._known if self._known[0] <= epoch else (-1, [])
        for current in range(known + 1, epoch + 1):
            order = self._continue(order, current)
        if known != epoch:
            self._known = (epoch, order)
        return order

    def _continue(self, previous: list[int], epoch: int) -> list[int]:
        generator = random.Random(f"{self._seed}/{epoch}")
        keys = [generator.random() for _ in self._rows]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        head = -epoch * len(keys) % self._batch_size  # rows that complete the batch begun in the epoch before
        if not head:
            return order
        begun = set(previous[len(keys) - (self._batch_size - head) :])
        first = [index for index in order if index not in begun][:head]
        taken = set(first)
        return first + [index for index in order if index not in taken]
