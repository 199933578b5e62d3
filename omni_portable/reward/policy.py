"""What happens when a scorer fails: further attempts, then the declared policy. A failure never becomes a score."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

from omni_portable.contracts.errors import ArtifactError, ConfigError, DataError, NonFiniteError, RewardError
from omni_portable.contracts.reward import RewardOutput, RewardSample
from omni_portable.reward.deadline import Attempt, GuardedScorer

FAILURE_POLICIES = ("fail", "drop_group")


@dataclass(frozen=True)
class FailurePolicy:
    """`retries` further attempts of `timeout_s` seconds each, then 'fail' stops the run and 'drop_group' names the
    samples of the failed groups."""

    on_error: str = "fail"
    retries: int = 0
    timeout_s: float = 120.0


@dataclass
class ScorerResult:
    """One scorer's answer for N samples: 'score' and its components as `columns`, NaN for samples in `errors`."""

    columns: dict[str, list[float]]
    details: list[dict[str, Any]]
    seconds: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def scores(self) -> list[float]:
        return self.columns["score"]


def run_scorer(
    name: str, scorer: GuardedScorer, samples: Sequence[RewardSample], policy: FailurePolicy
) -> ScorerResult:
    """Score N samples under the policy; errors as in :meth:`RewardComposer.score`."""
    started = time.perf_counter()
    result = _run(name, scorer, samples, policy) if samples else ScorerResult({"score": []}, [])
    result.seconds = time.perf_counter() - started
    return result


def _run(name: str, scorer: GuardedScorer, samples: Sequence[RewardSample], policy: FailurePolicy) -> ScorerResult:
    attempt = _attempts(scorer, samples, policy)
    if attempt.output is not None:
        return _checked(name, attempt.output, samples, policy)
    what = _describe(attempt, policy)
    if policy.on_error == "fail":
        first = samples[0]
        raise RewardError(
            f"the scorer '{name}' failed on {len(samples)} samples (the first: '{first.sample_id}', prompt "
            f"{first.prompt!r}): {what}",
            remedy="see the cause; reward.retries allows further attempts, reward.timeout_s more time, and "
            "reward.on_error=drop_group leaves prompts out whose samples cannot be scored",
        ) from attempt.error
    groups = _by_group(samples)
    if attempt.timed_out or len(groups) == 1:  # asking again group by group would multiply the wait
        return _failed(samples, what)
    return _join(samples, [_run(name, scorer, group, policy) for group in groups])


def _attempts(scorer: GuardedScorer, samples: Sequence[RewardSample], policy: FailurePolicy) -> Attempt:
    for remaining in range(policy.retries, -1, -1):
        attempt = scorer.attempt(samples, policy.timeout_s)
        if isinstance(attempt.error, ArtifactError | ConfigError | DataError):
            raise attempt.error  # wrong input or settings: no further attempt and no policy mends those
        if attempt.output is not None or remaining == 0:
            break
    return attempt


def _describe(attempt: Attempt, policy: FailurePolicy) -> str:
    if attempt.timed_out:
        return f"no answer within reward.timeout_s={policy.timeout_s:g} seconds, after {policy.retries + 1} attempts"
    return f"{type(attempt.error).__name__}: {attempt.error} (after {policy.retries + 1} attempts)"


def _checked(name: str, output: RewardOutput, samples: Sequence[RewardSample], policy: FailurePolicy) -> ScorerResult:
    """The output in columns, once it holds one finite number per sample."""
    columns = {"score": output.scores} | output.components | {"score": output.scores}  # first, and never replaced
    details = output.details or [{} for _ in samples]
    sized: dict[str, Sized] = {**columns, "details": details}
    for column, values in sized.items():
        if len(values) != len(samples):
            raise RewardError(
                f"the scorer '{name}' returned {len(values)} values of '{column}' for {len(samples)} samples "
                f"('{samples[0].sample_id}' to '{samples[-1].sample_id}')",
                remedy="a scorer returns one value per sample, in the order of the samples",
            )
    result = ScorerResult({key: [float(v) for v in values] for key, values in columns.items()}, details)
    for column, numbers in result.columns.items():
        for sample, number in zip(samples, numbers, strict=True):
            if not math.isfinite(number):
                result.errors.setdefault(sample.sample_id, f"the scorer '{name}' returned {column}={number}")
    if result.errors and policy.on_error == "fail":
        raise NonFiniteError(
            "; ".join(f"{text} for sample '{sample_id}'" for sample_id, text in list(result.errors.items())[:3])
            + f" ({len(result.errors)} of {len(samples)} samples)",
            remedy="mend the scorer; a score that cannot be given is an exception, not a NaN",
        )
    for index, sample in enumerate(samples):
        if sample.sample_id in result.errors:
            for numbers in result.columns.values():
                numbers[index] = math.nan
    return result


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
