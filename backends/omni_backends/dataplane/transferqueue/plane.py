"""Groups in a TransferQueue: one row per group with the columns 'train' and 'media', bounded in number and bytes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

import ray
from ray.exceptions import RayError

from omni_backends.dataplane.columns import Media, check_columns, joined, media_of, without_media
from omni_backends.dataplane.transferqueue import TransferQueueOptions, check_installed
from omni_backends.dataplane.transferqueue.claim import claim, release
from omni_backends.dataplane.transferqueue.ledger import Ledger, mib
from omni_backends.dataplane.transferqueue.objects import FULL, Objects, store_mib
from omni_backends.dataplane.transferqueue.rows import HERE, SIZE, Parts, Rows, Tag
from omni_backends.dataplane.transferqueue.service import PREFIX, find_or_start
from omni_backends.launch.ray import RayOptions
from omni_backends.launch.ray.cluster import connect
from omni_portable.contracts.dataplane import COLUMNS, MEDIA, TRAIN, Column, DataPlaneFullError, GroupTag, ScoredGroup
from omni_portable.contracts.errors import ClusterError, DataError
from omni_portable.rollout.codec import pack_parts
from omni_portable.rollout.distant import Bundles, TensorSource

log = logging.getLogger(__name__)

CLAIM_S = 30.0
"""For the cluster to notice that the process which took from a queue has ended."""
LOOK_S, ASK_S = 0.05, 1.0
"""Seconds between two looks for room at what is known here, and between two questions to the queue itself."""
CLUSTER_CPUS = 1
"""Of a cluster that is started for the queue alone."""


class TransferQueuePlane:
    """The `DataPlane` contract over one queue.

    One process puts and takes. Another may list, and takes over when the first is gone; it is refused before (see
    :mod:`claim`). Who else puts into the same queue is only counted against the capacity once this plane is full or
    asked for its tags.
    """

    name = "transferqueue"

    def __init__(self, options: TransferQueueOptions) -> None:
        check_installed()
        self._options = options
        self._claimed = not options.queue
        self._ledger = Ledger(options.capacity_groups, options.capacity_mib << 20)
        own = "" if ray.is_initialized() else options.address
        cluster = RayOptions(address=own, object_store_mib=store_mib(options))
        with ExitStack() as undo:
            connection = connect(cluster, cpus=CLUSTER_CPUS, key="dataplane.options.address")
            undo.callback(connection.close)
            self._service = find_or_start(options)
            if not options.queue:
                undo.callback(self._service.stop)
            self._rows = Rows(self._service, options.answer_timeout_s)
            undo.callback(self._rows.close)
            self._apart = options.objects_from_kib << 10
            self._objects = Objects(self._service.name, self._service.keepers, options.answer_timeout_s)
            self._remove_torn()
            self._undo = undo.pop_all()

    def put(self, group: ScoredGroup) -> None:
        """Store a group; when this returns, it does not depend on this process any more.

        Raises:
            DataError: a group of this id is stored already, or it is larger than the whole capacity.
            DataPlaneFullError: there is no room now.
            ClusterError: TransferQueue does not answer.
        """
        key = group.group_id
        bundles = Bundles() if self._apart else None
        columns: dict[str, Parts] = {
            TRAIN: pack_parts(without_media(group), bundles),
            MEDIA: pack_parts(media_of(group)),
        }
        size = sum(map(_size, columns.values())) + (bundles.size if bundles else 0)
        self._reserve(key, size)
        stored = False
        try:
            tag = {"submission": group.submission, "version": group.policy_version, "size": len(group.trajectories)}
            stored = self._written(key, columns, tag | {SIZE: size}, bundles.sources if bundles else ())
        finally:
            self._ledger.settle(key, stored)
        if not stored:
            raise _duplicate(key)

    def _written(self, key: str, columns: dict[str, Parts], tag: Tag, sources: Sequence[TensorSource]) -> bool:
        """Large columns, and one with distant tensors, become objects, of which the row holds labels; the row is valid
        once both are stored."""
        large = {name: parts for name, parts in columns.items() if self._apart and _size(parts) >= self._apart}
        if sources:
            large[TRAIN] = columns[TRAIN]
        stored = False
        handed = None
        try:
            handed = self._objects.hand_over(key, large, sources) if large else None
            here = columns | (handed.labelled() if handed else {})
            tag[HERE] = sum(map(_size, here.values()))
            stored = self._rows.put(key, here, tag, handed.kept if handed else None)
        except FULL as error:
            raise self._overflow(key, tag[SIZE], error) from error
        except RayError as error:
            raise self._objects.explained(error) from error
        finally:
            if handed and not stored:
                self._objects.withdraw(handed)
        return stored

    async def room(self, size: int = 0) -> None:
        """Wait until a group of `size` bytes would find room, whoever makes it.

        Raises:
            DataError: there was none for `room_timeout_s`.
        """
        began = asked = time.monotonic()
        while not self._ledger.fits(size):
            now = time.monotonic()
            if now - began > self._options.room_timeout_s:
                raise DataError(
                    f"the data plane 'transferqueue' is full ({self._ledger}) and nobody took anything out for "
                    f"{self._options.room_timeout_s:g} seconds",
                    remedy="raise dataplane.options.capacity_groups and capacity_mib above what steps train on that "
                    "are drawn at the same time",
                )
            if now - asked > ASK_S:
                await asyncio.to_thread(self._reclaim)
                asked = time.monotonic()
            await asyncio.sleep(LOOK_S)

    def tags(self) -> list[GroupTag]:
        """What is stored, in the order it was put, as the queue's controller knows it."""
        listed = self._listed().items()
        return [GroupTag(key, tag["submission"], tag["version"], tag["size"]) for key, tag in listed]

    def take(self, group_ids: Sequence[str], columns: Sequence[Column] = COLUMNS) -> list[ScoredGroup]:
        """Read the columns, then remove the groups.

        Should this process die in between, the groups are still stored.

        Raises:
            DataError: an id is not stored, or was asked for twice; or 'train' is not among the columns.
            ClusterError: TransferQueue does not answer, or another process takes from this queue.
        """
        check_columns(columns)
        self._claim()
        self._check_asked(group_ids)
        if not group_ids:
            return []
        names = [name for name in COLUMNS if name in columns]
        rows = self._rows.get(group_ids, names)
        if rows is None:
            raise self._missing(group_ids)
        groups: list[ScoredGroup] = []
        for portion in rows:
            keys = group_ids[len(groups) : len(groups) + len(portion)]
            groups += [_group(*row) for row in self._objects.resolved(keys, names, portion)]
        self._remove(group_ids)
        return groups

    def drop(self, group_ids: Sequence[str]) -> None:
        """Remove groups unread, all or none of them; errors as in :meth:`take`."""
        self._claim()
        self._check_asked(group_ids)
        if not set(group_ids) <= self._listed().keys():
            raise self._missing(group_ids)
        self._remove(group_ids)

    def close(self) -> None:
        """Leave the queue. Its processes end, unless it has a name (`options.queue`) and groups wait in it, or somebody
        else takes from it."""
        with self._undo:
            if self._options.queue and not self._rows.closed and not self._waiting() and self._own():
                self._service.stop()

    def _claim(self, patience_s: float = CLAIM_S) -> None:
        if not self._claimed:
            owner = claim(self._options.queue, PREFIX + self._options.queue, patience_s)
            if owner is not None:
                self._undo.callback(release, owner)
            self._claimed = True

    def _own(self) -> bool:
        try:
            self._claim(patience_s=0.0)
        except ClusterError as error:
            log.info("%s; it goes on", error.problem)
            return False
        return True

    def _waiting(self) -> int:
        try:
            count = len(self._rows.tags())
        except ClusterError as error:
            log.warning("the queue '%s' is ended, it does not answer: %s", self._service.name, error.problem)
            return 0
        if count:
            log.warning("%d groups wait in the queue '%s', which goes on", count, self._service.name)
        return count

    def _reserve(self, key: str, size: int) -> None:
        """Take room for a group before it is stored, so that two threads cannot have the same."""
        capacity = self._options.capacity_mib
        if size > capacity << 20:
            raise DataError(
                f"the group '{key}' takes {mib(size)} MiB, more than may be stored altogether "
                f"(dataplane.options.capacity_mib={capacity})",
                remedy="raise dataplane.options.capacity_mib, or draw smaller groups",
            )
        if not self._ledger.fits(size):
            self._reclaim()
        if key in self._ledger:
            raise _duplicate(key)
        if not self._ledger.reserve(key, size):
            raise DataPlaneFullError(
                f"the data plane 'transferqueue' has no room for the group '{key}' of {mib(size)} MiB: {self._ledger}",
                size=size,
                remedy="raise dataplane.options.capacity_groups or dataplane.options.capacity_mib",
            )

    def _listed(self) -> dict[str, Tag]:
        """What the queue itself says is stored; what is counted here follows it."""
        changes = self._ledger.changes
        tags = self._rows.tags()
        self._ledger.replace({key: tag[SIZE] for key, tag in tags.items()}, changes)
        return tags

    def _reclaim(self) -> None:
        """Count anew what others took, and free what writers left that died before their row was written."""
        if swept := self._objects.sweep(self._listed()):
            log.warning("freed in the queue '%s', whose writers are gone: %s", self._service.name, swept)

    def _overflow(self, key: str, size: int, error: RayError) -> DataPlaneFullError | DataError:
        problem = f"Ray's object store has no room for the group '{key}' of {mib(size)} MiB, nor has the disk"
        remedy = (
            "raise launcher.options.object_store_mib, give /dev/shm more memory or the disk of Ray's session directory "
            "more room, or set dataplane.options.objects_from_kib=0"
        )
        log.warning("%s: %s", problem, " ".join(str(error).split())[:300])
        if self._ledger.overflow(key):
            return DataPlaneFullError(f"{problem}: {self._ledger}", size=size, remedy=remedy)
        return DataError(f"{problem}, and no group waits there that could be taken out", remedy=remedy)

    def _remove(self, group_ids: Sequence[str]) -> None:
        self._rows.clear(group_ids)
        self._objects.forget(group_ids)
        self._ledger.forget(group_ids)

    def _remove_torn(self) -> None:
        """Rows that a process which is gone was about to remove: it had read them."""
        torn = [key for key in self._listed() if not self._rows.whole(key, COLUMNS)]
        if torn:
            log.warning("removed from the queue '%s', where somebody had begun to: %s", self._service.name, torn)
            self._remove(torn)
        self._reclaim()

    def _check_asked(self, group_ids: Sequence[str]) -> None:
        twice = [name for name, times in Counter(group_ids).items() if times > 1]
        if twice:
            raise DataError(f"the data plane 'transferqueue' was asked for {twice} more than once")

    def _missing(self, group_ids: Sequence[str]) -> DataError:
        stored = self._listed()
        return DataError(f"the data plane 'transferqueue' does not hold {[n for n in group_ids if n not in stored]}")


def _size(parts: Parts) -> int:
    return sum(part.nbytes for part in parts)


def _group(train: ScoredGroup, media: Media | None = None) -> ScoredGroup:
    return train if media is None else joined(train, media)


def _duplicate(key: str) -> DataError:
    return DataError(f"the data plane 'transferqueue' holds a group '{key}' already")
