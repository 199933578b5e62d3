"""The state machine of every rollout engine: running -> paused -> asleep -> paused -> running.

An engine asks :meth:`Lifecycle.require` before an operation and commits the new state only after the work succeeded, so
a failed operation leaves the state as it was. What is legal follows from the state and two facts beside it: which
memory tags are asleep, and whether the weights were discarded and not yet sent again.
"""

from __future__ import annotations

from collections.abc import Iterable

from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.lifecycle import EngineState

LEGAL: dict[EngineState, tuple[str, ...]] = {
    EngineState.RUNNING: ("generate", "abort", "pause", "weights_checksum", "health"),
    EngineState.PAUSED: ("abort", "resume", "sleep", "update_weights", "recall_weights", "weights_checksum", "health"),
    EngineState.ASLEEP: ("abort", "wake", "health"),
}
"""Operations each state allows; :class:`Lifecycle` narrows them where weights are missing or memory is half awake."""

NOT_KEPT = "the engine keeps the weights that an update replaced until it is resumed; these it has not"
"""What an engine says that is recalled to a version whose weights it cannot put back."""

LEVELS = (1, 2)
"""Sleep levels: 1 keeps a copy of the contents off the device, 2 discards them."""


class Lifecycle:
    """State, policy version and legality of operations of one engine.

    Args:
        engine: the engine's name, for error messages.
        tags: memory the engine can put to sleep, e.g. ('weights', 'kv_cache'); waking may be staged by tag.
        version: policy version the engine starts with.
    """

    def __init__(self, engine: str, tags: Iterable[str] = ("weights",), version: int = 0) -> None:
        self.engine = engine
        self.tags = tuple(tags)
        self.state = EngineState.RUNNING
        self.policy_version = version
        self.asleep: frozenset[str] = frozenset()
        self.weights_lost = False
        self.recalled_from: int | None = None

    @property
    def repeats(self) -> bool:
        """Whether the next update may bring the version that the engine says it holds: its weights are another's, or
        none."""
        return self.weights_lost or self.recalled_from is not None

    def legal(self) -> tuple[str, ...]:
        """Operations that are legal now."""
        allowed = list(LEGAL[self.state])
        if self.state is EngineState.PAUSED and self.asleep:
            allowed = [name for name in allowed if name not in ("resume", "sleep")] + ["wake"]
        if self.repeats:
            allowed = [name for name in allowed if name not in ("resume", "weights_checksum", "recall_weights")]
        return tuple(allowed)

    def require(self, operation: str) -> None:
        """Check that `operation` is legal now.

        Raises:
            LifecycleError: names the engine, the state, the operation and the operations that are legal.
        """
        if operation in self.legal():
            return
        raise LifecycleError(
            f"the rollout engine '{self.engine}' is {self._described()} and cannot {operation} now",
            remedy="call one of the legal operations first",
            choices=self.legal(),
        )

    def require_level(self, level: int) -> None:
        """Check a sleep level.

        Raises:
            LifecycleError: the level is not one of :data:`LEVELS`.
        """
        if level not in LEVELS:
            raise LifecycleError(
                f"the rollout engine '{self.engine}' was asked to sleep at level {level}",
                remedy="1 keeps a copy of the weights, 2 discards them",
                choices=[str(known) for known in LEVELS],
            )

    def require_tags(self, tags: Iterable[str]) -> tuple[str, ...]:
        """The tags to wake, each checked to be asleep.

        Raises:
            LifecycleError: no tag was named, or one is unknown or awake.
        """
        wanted = tuple(tags)
        wrong = [tag for tag in wanted if tag not in self.asleep]
        if wrong or not wanted:
            raise LifecycleError(
                f"the rollout engine '{self.engine}' was asked to wake {list(wrong or wanted)}, which is not asleep",
                choices=sorted(self.asleep),
            )
        return wanted

    def require_version(self, version: int) -> None:
        """Check the version of a weight update: it must grow, or repeat the present one if its weights were discarded
        or recalled.

        Raises:
            WeightSyncError: the version is too old.
        """
        lowest = self.policy_version if self.repeats else self.policy_version + 1
        if version < lowest:
            raise WeightSyncError(
                f"the rollout engine '{self.engine}' holds policy version {self.policy_version} and was sent version"
                f" {version}",
                remedy=f"send version {lowest} or later: versions only grow",
            )

    def paused(self) -> None:
        """Commit a pause."""
        self.state = EngineState.PAUSED

    def resumed(self) -> None:
        """Commit a resume."""
        self.state = EngineState.RUNNING

    def slept(self, level: int) -> None:
        """Commit a sleep of all tags; level 2 loses the weights until an update brings them again."""
        self.state = EngineState.ASLEEP
        self.asleep = frozenset(self.tags)
        self.weights_lost = self.weights_lost or level == 2

    def woke(self, tags: Iterable[str]) -> None:
        """Commit a wake; the engine is paused as soon as its weights are awake, so that they may be updated."""
        self.asleep -= frozenset(tags)
        if "weights" not in self.asleep:
            self.state = EngineState.PAUSED

    def updated(self, version: int) -> None:
        """Commit a weight update."""
        self.policy_version = version
        self.weights_lost = False
        self.recalled_from = None

    def recalled(self, version: int) -> None:
        """Commit that the last update is taken back: the engine stands at an earlier version, whose weights must come
        again before it draws (:meth:`went_back`, or an update).

        Raises:
            WeightSyncError: the version is not an earlier one.
        """
        if version >= self.policy_version:
            raise WeightSyncError(
                f"the rollout engine '{self.engine}' holds policy version {self.policy_version} and cannot go back to"
                f" {version}",
                remedy="name an earlier version",
            )
        self.recalled_from, self.policy_version = self.policy_version, version

    def went_back(self) -> None:
        """Commit that the engine holds the weights of the version that it was recalled to."""
        self.recalled_from = None

    def _described(self) -> str:
        parts = [self.state.value]
        if self.state is EngineState.PAUSED and self.asleep:
            parts.append(f"with {sorted(self.asleep)} asleep")
        if self.weights_lost:
            parts.append("without weights (discarded by sleep level 2 and not updated since)")
        if self.recalled_from is not None:
            parts.append(f"with the weights of version {self.recalled_from}, which was recalled")
        return " ".join(parts)
