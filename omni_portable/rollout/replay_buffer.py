"""The replay buffer: whole groups, in a defined order, never staler than allowed, each exactly once.

The buffer keeps the order of what waits in an index of its own, so that adding, counting and sampling cost O(log n) in
the number of waiting groups, whatever the data plane.

Staleness of a group is the difference between the policy version that trains on it and the oldest version that made one
of its samples. Groups come out ordered by (policy version, submission): oldest policy first, and within one policy in
the order in which they were submitted, however late their rewards arrived.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sortedcontainers import SortedKeyList

from omni_portable.contracts.dataplane import TRAIN, Column, DataPlane, DataPlaneFullError, GroupTag, ScoredGroup
from omni_portable.contracts.errors import ConfigError, DataError


def order(tag: GroupTag) -> tuple[int, int, str]:
    """Sort key of groups; the id settles ties so that the order never depends on arrival."""
    return (tag.policy_version, tag.submission, tag.group_id)


@dataclass
class ReplayStatistics:
    """Counters since they were last taken; staleness values are per group."""

    added_groups: int = 0
    sampled_groups: int = 0
    evicted_groups: int = 0
    evicted_trajectories: int = 0
    sampled_staleness: list[int] = field(default_factory=list)
    evicted_staleness: list[int] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """``replay/...`` metrics; means and maxima are absent where there was nothing to average."""
        figures = {
            "replay/added_groups": float(self.added_groups),
            "replay/sampled_groups": float(self.sampled_groups),
            "replay/evicted_groups": float(self.evicted_groups),
            "replay/evicted_trajectories": float(self.evicted_trajectories),
        }
        for name, values in (("staleness", self.sampled_staleness), ("evicted_staleness", self.evicted_staleness)):
            if values:
                figures[f"replay/{name}/mean"] = sum(values) / len(values)
                figures[f"replay/{name}/max"] = float(max(values))
        return figures


class ReplayBuffer:
    """Order, staleness and eviction over a data plane that only stores.

    Args:
        plane: where groups wait; groups it holds already count as added.
        max_staleness: largest difference of policy versions a group may have when it is trained on; 0 is on-policy.
    """

    def __init__(self, plane: DataPlane, max_staleness: int) -> None:
        if max_staleness < 0:
            raise ConfigError(f"dataplane.max_staleness is {max_staleness}", remedy="set it to 0 (on-policy) or more")
        self._plane = plane
        self._max_staleness = max_staleness
        self._waiting: SortedKeyList = SortedKeyList(plane.tags(), key=order)
        self._seen = {tag.group_id for tag in self._waiting}
        self._shifts: list[tuple[int, int]] = []
        self._statistics = ReplayStatistics()
        self._lock = threading.Lock()

    def add(self, group: ScoredGroup) -> None:
        """Store a complete group.

        Raises:
            DataError: the group is empty or ragged, or its id was added before (sampled and evicted groups count).
            DataPlaneFullError: the data plane has no room for it now.
        """
        _check_group(group)
        tag = GroupTag(group.group_id, group.submission, group.policy_version, len(group.trajectories))
        with self._lock:
            if tag.group_id in self._seen:
                raise DataError(
                    f"the group '{tag.group_id}' was added to the replay buffer before",
                    remedy="give every rollout of a prompt a group id of its own",
                )
            self._seen.add(tag.group_id)
        try:
            self._plane.put(group)  # without the lock: it may take a while
        except BaseException:
            with self._lock:
                self._seen.discard(tag.group_id)
            raise
        with self._lock:
            self._waiting.add(replace(tag, policy_version=self._shifted(tag.policy_version)))
            self._statistics.added_groups += 1

    async def store(self, group: ScoredGroup) -> None:
        """As :meth:`add`, but wait while the data plane is full, and keep the event loop free.

        Only where something else takes groups out meanwhile.
        """
        size = 0
        while True:
            await self._plane.room(size)
            try:
                await asyncio.to_thread(self.add, group)
                return
            except DataPlaneFullError as full:
                size = full.size

    def available(self, policy_version: int) -> int:
        """Groups that a consumer at `policy_version` may sample now."""
        with self._lock:
            self._refuse_newer(policy_version)
            return len(self._waiting) - self._first_fresh(policy_version)

    def sample(self, count: int, policy_version: int, columns: Sequence[Column] = (TRAIN,)) -> list[ScoredGroup]:
        """Evict what is too stale for `policy_version`, then remove and return the first `count` groups in order.

        Args:
            columns: what is read of them; the rest (by default the media artifacts) is gone with them.

        Raises:
            DataError: fewer than `count` groups are left (nothing is removed beyond the stale ones), or a group was
                made by a newer policy than the consumer's.
        """
        if count < 1:
            raise DataError(f"the replay buffer was asked for {count} groups", remedy="ask for 1 or more")
        with self._lock:
            self._refuse_newer(policy_version)
            self._evict(policy_version)
            if len(self._waiting) < count:
                raise DataError(
                    f"the replay buffer was asked for {count} groups but holds {len(self._waiting)} that policy version"
                    f" {policy_version} may train on (max_staleness {self._max_staleness})",
                    remedy="wait for more rollouts, or raise dataplane.max_staleness",
                )
            chosen: list[GroupTag] = list(self._waiting[:count])
            groups = self._plane.take([tag.group_id for tag in chosen], columns)
            del self._waiting[:count]
            self._statistics.sampled_groups += count
            self._statistics.sampled_staleness += [policy_version - tag.policy_version for tag in chosen]
            return groups

    def discard(self) -> int:
        """Remove all that waits, as if it had never been added; how many groups that were."""
        with self._lock:
            names = [tag.group_id for tag in self._waiting]
            self._plane.drop(names)
            self._waiting.clear()
            self._seen.difference_update(names)
        return len(names)

    def shift_versions(self, since: int, by: int) -> None:
        """After version `since`, `by` further versions were counted without change of the policy: groups that it or an
        older one drew become no staler by them, those that wait as well as those that are still being drawn."""
        with self._lock:
            self._shifts.append((since, by))
            moved = [replace(tag, policy_version=_moved(tag.policy_version, since, by)) for tag in self._waiting]
            self._waiting = SortedKeyList(moved, key=order)

    def statistics(self) -> dict[str, float]:
        """Metrics since the last call; counters then start again at zero."""
        with self._lock:
            taken, self._statistics = self._statistics, ReplayStatistics()
        return taken.metrics()

    def __len__(self) -> int:
        return len(self._waiting)

    def _shifted(self, version: int) -> int:
        for since, by in self._shifts:
            version = _moved(version, since, by)
        return version

    def _first_fresh(self, policy_version: int) -> int:
        """Groups in front that are too stale, found by bisection."""
        return int(self._waiting.bisect_key_left((policy_version - self._max_staleness, -1, "")))

    def _evict(self, policy_version: int) -> None:
        stale: list[GroupTag] = list(self._waiting[: self._first_fresh(policy_version)])
        if not stale:
            return
        self._plane.drop([tag.group_id for tag in stale])
        del self._waiting[: len(stale)]
        self._statistics.evicted_groups += len(stale)
        self._statistics.evicted_trajectories += sum(tag.size for tag in stale)
        self._statistics.evicted_staleness += [policy_version - tag.policy_version for tag in stale]

    def _refuse_newer(self, policy_version: int) -> None:
        newest = self._waiting[-1] if self._waiting else None
        if newest is not None and newest.policy_version > policy_version:
            raise DataError(
                f"the group '{newest.group_id}' was made by policy version {newest.policy_version}, newer than the"
                f" {policy_version} that asks for it",
                remedy="the consumer must pass the version it last published",
            )


def _moved(version: int, since: int, by: int) -> int:
    return version + by if version <= since else version


def _check_group(group: ScoredGroup) -> None:
    size = len(group.trajectories)
    if size == 0:
        raise DataError(f"the group '{group.group_id}' has no trajectories")
    lengths = {"rewards": len(group.rewards)} | {name: len(values) for name, values in group.components.items()}
    if group.details:
        lengths["details"] = len(group.details)
    ragged = {name: length for name, length in lengths.items() if length != size}
    if ragged:
        raise DataError(f"the group '{group.group_id}' has {size} trajectories but {ragged} values")
