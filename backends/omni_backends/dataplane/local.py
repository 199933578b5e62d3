"""The in-memory data plane: groups wait in a dictionary of this process. Loads without torch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from omni_backends.dataplane.columns import check_columns, without_media
from omni_portable.contracts.dataplane import COLUMNS, MEDIA, Column, GroupTag, ScoredGroup
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.registry import NoOptions, PluginSpec

SPEC = PluginSpec(
    name="local",
    summary="keeps groups in the memory of one process; nothing is copied",
    target="omni_backends.dataplane.local:LocalDataPlane",
    capabilities={"multi_process": False, "persistent": False},
)


class LocalDataPlane:
    """Groups by id, in the order they were put. Every call is atomic, so producer and consumer may be threads."""

    name = "local"

    def __init__(self, options: NoOptions | None = None) -> None:
        self._groups: dict[str, ScoredGroup] = {}
        self._lock = threading.Lock()

    def put(self, group: ScoredGroup) -> None:
        """Store a group.

        Raises:
            DataError: a group of this id is stored already.
        """
        with self._lock:
            if group.group_id in self._groups:
                raise DataError(f"the data plane 'local' holds a group '{group.group_id}' already")
            self._groups[group.group_id] = group

    async def room(self, size: int = 0) -> None:
        """There is always room: how far rollout may run ahead bounds what waits here."""

    def tags(self) -> list[GroupTag]:
        """What is stored, in the order it was put."""
        with self._lock:
            groups = list(self._groups.values())
        return [GroupTag(g.group_id, g.submission, g.policy_version, len(g.trajectories)) for g in groups]

    def take(self, group_ids: Sequence[str], columns: Sequence[Column] = COLUMNS) -> list[ScoredGroup]:
        """Remove and return groups in the order asked for; all of them or, on an error, none.

        Raises:
            DataError: an id is not stored, or was asked for twice; or 'train' is not among the columns.
        """
        check_columns(columns)
        with self._lock:
            self._check(group_ids)
            groups = [self._groups.pop(name) for name in group_ids]
        return groups if MEDIA in columns else [without_media(group) for group in groups]

    def drop(self, group_ids: Sequence[str]) -> None:
        """Remove groups, all or none of them; errors as in :meth:`take`."""
        with self._lock:
            self._check(group_ids)
            for name in group_ids:
                del self._groups[name]

    def close(self) -> None:
        """Forget what is left."""
        with self._lock:
            self._groups.clear()

    def _check(self, group_ids: Sequence[str]) -> None:
        wrong = [name for name, times in Counter(group_ids).items() if times > 1 or name not in self._groups]
        if wrong:
            raise DataError(f"the data plane 'local' was asked for {wrong}, not stored or asked for twice")
