"""One call to every replica at once, and what their answers say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from omni_portable.contracts.errors import LifecycleError, OmniPortableError, WeightSyncError, WorkerLostError
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.rollout import RolloutEngine

Answer = TypeVar("Answer")
Key = TypeVar("Key")

AGAIN_S = 1.0


@dataclass
class Answers(Generic[Answer]):
    """What came back, by replica: an answer, the news that its process is gone, or an error."""

    done: dict[str, Answer] = field(default_factory=dict)
    lost: dict[str, WorkerLostError] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)

    def first_failure(self) -> Exception | None:
        """The first error, naming its replica."""
        for replica, error in self.failed.items():
            return named(error, replica)
        return None


def call_all(replicas: Mapping[str, RolloutEngine], call: Callable[[RolloutEngine], Answer]) -> Answers[Answer]:
    """Call every replica in a thread of its own and wait for all of them: nobody waits for a slow one before its turn,
    and an error of one keeps no other from being asked."""
    answers: Answers[Answer] = Answers()
    if not replicas:
        return answers
    with ThreadPoolExecutor(len(replicas)) as threads:
        futures = {replica: threads.submit(call, engine) for replica, engine in replicas.items()}
    for replica, future in futures.items():
        error = future.exception()
        if error is None:
            answers.done[replica] = future.result()
        elif isinstance(error, WorkerLostError):
            answers.lost[replica] = error
        elif isinstance(error, Exception):
            answers.failed[replica] = error
        else:
            raise error
    return answers


def give_up(starting: Mapping[Future[Any], Key], stop: Callable[[Key], object]) -> None:
    """Stop what is being started in other threads, again and again until all have come to an end: what is stopped
    before it has a process is not stopped by that."""
    while pending := [future for future in starting if not future.done()]:
        for future in pending:
            stop(starting[future])
        wait(pending, timeout=AGAIN_S)


def named(error: Exception, replica: str) -> Exception:
    """The same error, saying which replica it comes from."""
    if not isinstance(error, OmniPortableError):
        error.add_note(f"in the rollout replica '{replica}'")
        return error
    return _saying(error, f"rollout replica '{replica}': {error.problem}")


def with_more(error: Exception, phrases: Sequence[str]) -> Exception:
    """The same error, saying what else went wrong."""
    if not isinstance(error, OmniPortableError):
        for phrase in phrases:
            error.add_note(phrase)
        return error
    return _saying(error, "; ".join((error.problem, *phrases)))


def _saying(error: OmniPortableError, problem: str) -> OmniPortableError:
    return type(error)(problem, remedy=error.remedy, choices=error.choices).with_traceback(error.__traceback__)


def check_acks(acks: Mapping[str, Ack], operation: str, version: int) -> None:
    """Every replica did the operation and now holds `version`.

    Raises:
        LifecycleError, WeightSyncError: names the replica that did not, and what it answered.
    """
    for replica, ack in acks.items():
        if not ack.ok or ack.operation != operation:
            raise LifecycleError(
                f"rollout replica '{replica}' was asked to {operation} and answered {ack.operation} "
                f"({'ok' if ack.ok else 'not ok'}): {ack.detail}"
            )
        if ack.policy_version != version:
            raise WeightSyncError(
                f"after {operation} rollout replica '{replica}' holds policy version {ack.policy_version}, not "
                f"{version} as the others do",
                remedy="stop the run and resume it: a replica must never draw from another policy than it says",
            )


def joined_ack(acks: Mapping[str, Ack], operation: str, version: int, aborted: Sequence[str] = ()) -> Ack:
    """One acknowledgement for all: bytes add up, and the slowest counts."""
    return Ack(
        operation,
        version,
        bytes=sum(ack.bytes for ack in acks.values()),
        seconds=max((ack.seconds for ack in acks.values()), default=0.0),
        detail=f"{len(acks)} replicas; " + next((ack.detail for ack in acks.values()), ""),
        aborted=tuple(aborted),
    )


def same_checksums(found: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The checksums that all replicas agree on.

    Raises:
        WeightSyncError: names the first tensor that two replicas hold differently.
    """
    (first, wanted), *others = found.items()
    for replica, checksums in others:
        for name in wanted.keys() | checksums.keys():
            if wanted.get(name) != checksums.get(name):
                raise WeightSyncError(
                    f"rollout replicas '{first}' and '{replica}' hold different weights: '{name}' is "
                    f"{wanted.get(name, 'missing')} and {checksums.get(name, 'missing')}",
                    remedy="stop the run and resume it",
                )
    return dict(wanted)


def joined_statistics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of all replicas as one: counts and seconds add up, means are weighted by batches."""
    joined: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if name.endswith("/min"):
            joined[name] = min(values)
        elif name.endswith("/max"):
            joined[name] = max(values)
        elif name.endswith("/mean"):
            weights = [part.get("perf/rollout/batches", 1.0) for part in parts if name in part]
            joined[name] = sum(v * w for v, w in zip(values, weights, strict=True)) / (sum(weights) or 1.0)
        else:
            joined[name] = sum(values)
    return joined
