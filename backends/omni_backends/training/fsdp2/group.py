"""Processes of ranks as their driver sees them, wherever they run: messages, who has answered, who is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class GoneError(Exception):
    """A rank's process has ended, or cannot be reached any more.

    Args:
        how: for messages: 'was killed by signal 9 (SIGKILL)'.
    """

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Group(Protocol):
    """Started processes by rank. Each answers once when it was built ('ready' and its facts, or a `Failure`), then once
    to every command, in order."""

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        ...

    def describe(self, rank: int) -> str:
        """Where it runs: 'pid 17'."""
        ...

    def send(self, rank: int, message: object) -> None:
        """
        Raises:
            GoneError: the process has ended.
            RankError: there is no room for the message.
        """
        ...

    def wait(self, ranks: Sequence[int], timeout_s: float | None) -> list[int]:
        """Those of `ranks` whose answer is there, or that are gone; at least one unless the time is over."""
        ...

    def receive(self, rank: int) -> Any:
        """The answer.

        Raises:
            GoneError: the process has ended.
        """
        ...

    def finish(self, seconds: float) -> None:
        """Wait for processes that were asked to end."""
        ...

    def stop(self) -> None:
        """End all processes, now; safe to call twice."""
        ...
