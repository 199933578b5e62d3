"""Large columns of rows in Ray's object store: handed over, looked up by what the row says, and freed with the row.

Bytes that go through TransferQueue's own processes pass loopback TCP twice. In the object store they are copied from
memory to memory, and a reader on the same machine sees them where they are.
"""

from __future__ import annotations

import uuid
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from ray.exceptions import GetTimeoutError, ObjectStoreFullError, OutOfDiskError, RayError

from omni_backends.dataplane.transferqueue import TransferQueueOptions
from omni_backends.launch.ray import SMALLEST_STORE_MIB
from omni_backends.launch.ray.disk import of_ray
from omni_backends.launch.ray.tensors import Bundle, reference_of
from omni_portable.contracts.errors import ClusterError, DataError
from omni_portable.rollout.codec import Part, pack_parts, unpack_parts
from omni_portable.rollout.distant import TensorSource

ENTRY = "entry"
"""Key of a label: a mapping, which no column of a group is."""
DISTANT = "distant"
"""Key of a label: how many sources its distant tensors have; and the first part of their names at the keeper."""
WINDOW_MIB = 128
"""Of an object store, beside what waits in it."""
FULL = (ObjectStoreFullError, OutOfDiskError)
"""What Ray raises where an object finds no room, on the disk neither."""
Columns = Mapping[str, Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Label:
    """What a row holds in place of a large column.

    Args:
        key: of the row.
        entry: see :class:`Keeper`.
        column: its name.
    """

    key: str
    entry: str
    column: str


@dataclass(frozen=True)
class Handed:
    """An entry on its way to its keeper.

    Args:
        key / entry: see :class:`Keeper`.
        names: of its columns.
        distant: sources of distant tensors beside them.
        kept: Ray's reference, resolved once the keeper owns the columns.
    """

    key: str
    entry: str
    names: Sequence[str]
    distant: int
    kept: Any

    def labelled(self) -> dict[str, list[torch.Tensor]]:
        """What the row holds in place of the columns."""
        return {name: pack_parts({ENTRY: self.entry, DISTANT: self.distant}) for name in self.names}


class Objects:
    """The writer's and the reader's side of a queue's keepers. May be called from any thread.

    Args:
        queue: its name, for messages.
        keepers: actors; the key of a row decides which one has its columns.
        timeout_s: for one answer; a row must be written within that time as well.
    """

    def __init__(self, queue: str, keepers: Sequence[Any], timeout_s: float) -> None:
        self._queue, self._keepers, self._timeout_s = queue, keepers, timeout_s

    def hand_over(self, key: str, columns: Columns, sources: Sequence[TensorSource] = ()) -> Handed:
        """Copy columns into the object store of this machine and have a keeper take them from there.

        Args:
            sources: of distant tensors in them, which do not come to this process: the keeper takes them from where
                they are.

        Raises:
            ObjectStoreFullError / OutOfDiskError: no room, on the disk neither (of `kept` as well).
            ClusterError: Ray does not answer.
        """
        entry, names = uuid.uuid4().hex, list(columns)
        try:
            objects = [ray.put([part.numpy() for part in columns[name]]) for name in names]
            objects += map(reference_of, sources)
            held = [*names, *(f"{DISTANT}-{number}" for number in range(len(sources)))]
            kept = self._keeper(key).hold.remote(key, entry, 2 * self._timeout_s, held, *objects)
        except FULL:
            raise
        except RayError as error:
            raise self.explained(error) from error
        return Handed(key, entry, names, len(sources), kept)

    def withdraw(self, handed: Handed) -> None:
        """The row was not written: its columns go as soon as the keeper has them."""
        self._keeper(handed.key).withdraw.remote(handed.key, handed.entry)

    def resolved(self, keys: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """The values of columns of rows, with those that wait in the object store.

        Args:
            keys: of the rows.
            names: of the columns.
            rows: for each key the parts of each column, as the row has them.

        Raises:
            As :meth:`bring`.
        """
        values = [[unpack_parts(parts) for parts in row] for row in rows]
        labels = {
            (place, position): Label(key, value[ENTRY], name)
            for place, (key, row) in enumerate(zip(keys, values, strict=True))
            for position, (name, value) in enumerate(zip(names, row, strict=True))
            if isinstance(value, dict)
        }
        for (place, position), parts in zip(labels, self.bring(list(labels.values())), strict=True):
            label, count = labels[place, position], values[place][position][DISTANT]
            values[place][position] = unpack_parts(parts, self._sources(label, count))
        return values

    def _sources(self, label: Label, count: int) -> list[TensorSource]:
        wanted = [replace(label, column=f"{DISTANT}-{number}") for number in range(count)]
        return [Bundle(reference, self._one) for reference in self._found(wanted)]

    def _one(self, reference: Any) -> Any:
        return self._answers([reference])[0]

    def bring(self, labels: Sequence[Label]) -> list[list[Part]]:
        """The columns, in the memory of the object store: nobody may write there, and it is freed with the last of them
        that is let go of.

        Raises:
            DataError: there is nothing under one of them (any more).
            ClusterError: it was lost, or did not come in time.
        """
        columns = self._answers(self._found(labels))
        return [[memoryview(part) for part in column] for column in columns]

    def forget(self, keys: Collection[str]) -> None:
        """Rows were removed."""
        if not self._keepers:
            return
        dealt: dict[int, list[str]] = defaultdict(list)
        for key in keys:
            dealt[self._index(key)].append(key)
        self._answers([self._keepers[index].forget.remote(own) for index, own in dealt.items()])

    def sweep(self, stored: Collection[str]) -> list[str]:
        """Free what belongs to no row and never will; the keys."""
        rows = list(stored)
        swept = self._answers([keeper.sweep.remote(rows) for keeper in self._keepers])
        return sorted({key for keys in swept for key in keys})

    def _found(self, labels: Sequence[Label]) -> list[Any]:
        references = self._references(labels) if labels else []
        missing = [label.key for label, reference in zip(labels, references, strict=True) if reference is None]
        if missing:
            raise DataError(f"the queue '{self._queue}' does not hold the columns of {missing} any more")
        return references

    def _references(self, labels: Sequence[Label]) -> list[Any]:
        dealt: dict[int, list[int]] = defaultdict(list)
        for position, label in enumerate(labels):
            dealt[self._index(label.key)].append(position)
        asked = [
            self._keepers[index].find.remote([(labels[p].key, labels[p].entry, labels[p].column) for p in positions])
            for index, positions in dealt.items()
        ]
        references: list[Any] = [None] * len(labels)
        for positions, found in zip(dealt.values(), self._answers(asked), strict=True):
            for position, reference in zip(positions, found, strict=True):
                references[position] = reference
        return references

    def _index(self, key: str) -> int:
        return zlib.crc32(key.encode()) % len(self._keepers)

    def _keeper(self, key: str) -> Any:
        return self._keepers[self._index(key)]

    def _answers(self, references: Sequence[Any]) -> list[Any]:
        try:
            return list(ray.get(list(references), timeout=self._timeout_s))
        except RayError as error:
            raise self.explained(error) from error

    def explained(self, error: RayError) -> ClusterError:
        """Ray's words about an object or a keeper in ours."""
        if isinstance(error, GetTimeoutError):
            return of_ray(
                ClusterError,
                f"objects of the queue '{self._queue}' did not come within {self._timeout_s:g} seconds: their machine "
                "is gone or overloaded, or has no room for them",
                "look after the machine and run the same command with --resume; "
                "dataplane.options.answer_timeout_s allows more time",
            )
        return of_ray(
            ClusterError,
            f"objects of the queue '{self._queue}' are lost, their process or machine is gone: "
            f"{' '.join(str(error).split())[:300]}",
            "see `ray status` and run the same command with --resume",
        )


def store_mib(options: TransferQueueOptions) -> int:
    """Memory of the object store of a cluster that is started for a queue alone: what the queue may hold and a window
    for what is handed over, as far as shared memory and 30 % of the machine's (Ray's own default) go; what is beyond
    that waits on the disk."""
    if not options.objects_from_kib:
        return WINDOW_MIB
    shared = Path("/dev/shm")
    limits = [psutil.virtual_memory().total * 3 // 10]
    if shared.is_dir():
        limits.append(psutil.disk_usage(str(shared)).free * 9 // 10)
    return max(SMALLEST_STORE_MIB, min(options.capacity_mib + WINDOW_MIB, min(limits) >> 20))
