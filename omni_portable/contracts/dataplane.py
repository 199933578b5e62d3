"""The data-plane seam: where finished groups wait between rollout and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from omni_portable.contracts.errors import OmniPortableError

if TYPE_CHECKING:
    from omni_portable.contracts.tokens import AnyTrajectory

Column: TypeAlias = Literal["train", "media"]
TRAIN: Column = "train"
"""A group without its media artifacts: all that training reads."""
MEDIA: Column = "media"
"""The media artifacts of a group's trajectories."""
COLUMNS: tuple[Column, ...] = (TRAIN, MEDIA)


class DataPlaneFullError(OmniPortableError):
    """A group for which a bounded data plane has no room now.

    Args:
        size: bytes that the group takes there (for :meth:`DataPlane.room`).
    """

    def __init__(self, problem: str, *, size: int, remedy: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        self.size = size


@dataclass
class ScoredGroup:
    """The trajectories of one prompt in one rollout, written together and sampled together.

    Args:
        group_id: unique within the run.
        submission: position in the order of submission (ties of version are resolved by it).
        trajectories: the group's samples in sample order.
        rewards: one total reward per sample.
        components: name -> one value per sample.
        details: one mapping per sample for reports.
    """

    group_id: str
    submission: int
    trajectories: list[AnyTrajectory]
    rewards: list[float]
    components: dict[str, list[float]] = field(default_factory=dict)
    details: list[dict[str, object]] = field(default_factory=list)

    @property
    def policy_version(self) -> int:
        """The oldest version among the group's trajectories: staleness is bounded per group by its oldest sample."""
        return min(t.policy_version for t in self.trajectories)


@dataclass(frozen=True)
class GroupTag:
    """What is known of a stored group without reading its tensors."""

    group_id: str
    submission: int
    policy_version: int
    size: int


@runtime_checkable
class DataPlane(Protocol):
    """Storage of groups. Policy (order, staleness, eviction) lives in `rollout.ReplayBuffer`, not here.

    Every call may come from any thread. A group is there as a whole or not at all.
    """

    name: str

    def put(self, group: ScoredGroup) -> None:
        """Store a complete group.

        Raises:
            DataError: a group of this id is stored already, or could never be stored (its size).
            DataPlaneFullError: there is no room now.
        """
        ...

    async def room(self, size: int = 0) -> None:
        """Wait until one more group, of `size` bytes, would find room. Somebody else may be faster with his own.

        Raises:
            DataError: there was none for longer than the plane waits.
        """
        ...

    def tags(self) -> list[GroupTag]:
        """What is stored now, whoever stored it."""
        ...

    def take(self, group_ids: Sequence[str], columns: Sequence[Column] = COLUMNS) -> list[ScoredGroup]:
        """Read and remove groups, in the order asked for; all of them or, on an error, none.

        Args:
            columns: what is read; the trajectories have no artifacts where 'media' is not among them. Either way the
                whole groups are removed.

        Raises:
            DataError: an id is not stored, or was asked for twice; or 'train' is not among the columns.
        """
        ...

    def drop(self, group_ids: Sequence[str]) -> None:
        """Remove groups unread, all or none of them; errors as in :meth:`take`."""
        ...

    def close(self) -> None:
        """Let go of what the plane holds outside this process; safe to call twice."""
        ...
