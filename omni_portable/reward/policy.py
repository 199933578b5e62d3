"""What happens when a scorer fails: further attempts, then the declared policy. A failure never becomes a score."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from omni_portable.contracts.errors import ArtifactError, ConfigError, DataError, NonFiniteError, RewardError
from omni_portable.contracts.reward import RewardSample
from omni_portable.reward.deadline import GuardedScorer
from omni_portable.reward.returned import ScorerResult, read_returned

FAILURE_POLICIES = ("fail", "drop_group")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Seconds before the second attempt, and before any: each pause is twice the one before."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FailurePolicy:
    """`retries` further attempts of `timeout_s` seconds each, then 'fail' stops the run and 'drop_group' names the
    samples of the failed groups.

    Args:
        pause_s: before the first further attempt; doubled for each one after it.
    """

    on_error: str = "fail"
    retries: int = 0
    timeout_s: float = 120.0
    pause_s: float = FIRST_PAUSE_S

    def pause(self, failed: int) -> float:
        """Seconds to wait after so many failed attempts."""
        return float(min(LONGEST_PAUSE_S, self.pause_s * 2 ** min(failed - 1, 32)))


@dataclass(frozen=True)
class Failure:
    """Why the last of so many attempts gave no result."""

    what: str
    attempts: int
    cause: BaseException | None = None
    timed_out: bool = False

    def __str__(self) -> str:
        return f"{self.what} (after {self.attempts} attempt{'s' if self.attempts > 1 else ''})"


def run_scorer(
    name: str, scorer: GuardedScorer, samples: Sequence[RewardSample], policy: FailurePolicy
) -> ScorerResult:
    """Score N samples under the policy; errors as in :meth:`RewardComposer.score`."""
    started = time.perf_counter()
    result = _run(name, scorer, samples, policy) if samples else ScorerResult({"score": []}, [])
    result.seconds = time.perf_counter() - started
    return result


def _run(name: str, scorer: GuardedScorer, samples: Sequence[RewardSample], policy: FailurePolicy) -> ScorerResult:
    answer = _attempts(name, scorer, samples, policy)
    if isinstance(answer, ScorerResult):
        if answer.errors and policy.on_error == "fail":
            raise _bad_values(answer, len(samples))
        return answer
    if policy.on_error == "fail":
        first = samples[0]
        mend = f"{answer.cause.remedy}; or " if isinstance(answer.cause, RewardError) and answer.cause.remedy else ""
        raise RewardError(
            f"the scorer '{name}' failed on {len(samples)} samples (the first: '{first.sample_id}', prompt "
            f"{first.prompt!r}): {answer}",
            remedy=f"{mend}see the cause; reward.retries allows further attempts, reward.timeout_s more time, and "
            "reward.on_error=drop_group leaves prompts out whose samples cannot be scored",
        ) from answer.cause
    groups = _by_group(samples)
    if answer.timed_out or len(groups) == 1:  # asking again group by group would multiply the wait
        return _failed(samples, str(answer))
    return _join(samples, [_run(name, scorer, group, policy) for group in groups])


def _attempts(
    name: str, scorer: GuardedScorer, samples: Sequence[RewardSample], policy: FailurePolicy
) -> ScorerResult | Failure:
    for number in range(1, policy.retries + 2):
        answer = _attempt(name, scorer, samples, policy, number)
        if isinstance(answer, ScorerResult):
            return answer
        if number == 1:
            log.warning("the scorer '%s' failed on %d samples: %s", name, len(samples), answer.what)
        if number <= policy.retries:
            time.sleep(policy.pause(number))
    return answer


def _attempt(
    name: str, scorer: GuardedScorer, samples: Sequence[RewardSample], policy: FailurePolicy, number: int
) -> ScorerResult | Failure:
    attempt = scorer.attempt(samples, policy.timeout_s)
    if attempt.timed_out:
        return Failure(f"no answer within reward.timeout_s={policy.timeout_s:g} seconds", number, timed_out=True)
    if isinstance(attempt.error, ArtifactError | ConfigError | DataError):
        raise attempt.error  # wrong input or settings: no further attempt and no policy mends those
    if attempt.error is not None:
        return Failure(f"{type(attempt.error).__name__}: {attempt.error}", number, attempt.error)
    try:
        return read_returned(name, attempt.output, samples)
    except RewardError as error:
        return Failure(error.problem, number, error)


def _bad_values(result: ScorerResult, count: int) -> RewardError | NonFiniteError:
    shown = "; ".join(f"{text} for sample '{sample_id}'" for sample_id, text in list(result.errors.items())[:3])
    kind = RewardError if result.not_numbers else NonFiniteError
    return kind(
        f"{shown} ({len(result.errors)} of {count} samples)",
        remedy="mend the scorer; a score that cannot be given is an exception, not a NaN, None or text. "
        "reward.on_error=drop_group leaves such prompts out",
    )


def _failed(samples: Sequence[RewardSample], what: str) -> ScorerResult:
    return ScorerResult(
        {"score": [math.nan] * len(samples)}, [{} for _ in samples], errors={s.sample_id: what for s in samples}
    )


def _by_group(samples: Sequence[RewardSample]) -> list[list[RewardSample]]:
    groups: dict[str, list[RewardSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    return list(groups.values())


def _join(samples: Sequence[RewardSample], parts: Sequence[ScorerResult]) -> ScorerResult:
    """Results of the groups, back in the order of `samples`."""
    order = [sample.sample_id for group in _by_group(samples) for sample in group]
    place = {sample_id: i for i, sample_id in enumerate(order)}
    take = [place[sample.sample_id] for sample in samples]
    names = dict.fromkeys(key for part in parts for key in part.columns)
    flat = {key: [v for part in parts for v in part.columns.get(key, [math.nan] * len(part.details))] for key in names}
    details = [d for part in parts for d in part.details]
    return ScorerResult(
        columns={key: [values[i] for i in take] for key, values in flat.items()},
        details=[details[i] for i in take],
        errors={sample_id: text for part in parts for sample_id, text in part.errors.items()},
    )
