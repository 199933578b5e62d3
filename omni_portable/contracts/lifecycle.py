"""What engines answer to lifecycle calls, and the states they may be in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EngineState(str, Enum):
    """running -> paused -> asleep -> paused -> running; weights change only while paused."""

    RUNNING = "running"
    PAUSED = "paused"
    ASLEEP = "asleep"


@dataclass(frozen=True)
class Ack:
    """Acknowledgement of one lifecycle operation; an operation that failed raises instead.

    Args:
        operation: 'pause', 'resume', 'sleep', 'wake', 'update_weights', 'abort', ...
        policy_version: version the engine holds after the operation.
        bytes: bytes freed, restored or received, as measured (0 where the operation moves none).
        seconds: wall time of the operation.
        detail: a sentence for people, e.g. which requests were aborted.
        aborted: ids of the requests this operation aborted.
        ok: False where `recall_weights` could not bring the weights of its version back by itself.
    """

    operation: str
    policy_version: int = 0
    bytes: int = 0
    seconds: float = 0.0
    detail: str = ""
    aborted: tuple[str, ...] = ()
    ok: bool = True
