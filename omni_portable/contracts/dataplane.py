"""The data-plane seam: where finished groups wait between rollout and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from omni_portable.contracts.tokens import AnyTrajectory


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
    """Storage of groups. Policy (order, staleness, eviction) lives in `rollout.ReplayBuffer`, not here."""

    name: str

    def put(self, group: ScoredGroup) -> None:
        """Store a complete group; a second put of the same id is an error."""
        ...

    def tags(self) -> list[GroupTag]: ...

    def take(self, group_ids: Sequence[str]) -> list[ScoredGroup]:
        """Read and remove groups, in the order asked for."""
        ...

    def drop(self, group_ids: Sequence[str]) -> None: ...
