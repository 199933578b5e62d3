"""Several weighted scorers as one reward, with retries, deadlines and a declared answer to failures."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_portable.config.plugins import plugin_options
from omni_portable.config.schema import RewardConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError, NonFiniteError, OmniPortableError, RewardError
from omni_portable.contracts.reward import ComposedReward, RewardSample, Scorer, ScorerRequirements
from omni_portable.reward.background import in_daemon_thread
from omni_portable.reward.deadline import GuardedScorer
from omni_portable.reward.policy import FAILURE_POLICIES, FailurePolicy, run_scorer
from omni_portable.reward.requirements import check_samples, merge_requirements
from omni_portable.reward.returned import LARGEST_SCORE, ScorerResult, described

MOST_RETRIES = 100
"""Further attempts that reward.retries allows at most: with the longest pauses, 50 minutes."""


def join_rewards(parts: Sequence[ComposedReward]) -> ComposedReward:
    """Rewards of consecutive sets of samples as one; seconds add up."""
    names = dict.fromkeys(name for part in parts for name in part.components)
    scorers = dict.fromkeys(name for part in parts for name in part.seconds)
    return ComposedReward(
        total=[value for part in parts for value in part.total],
        components={
            name: [v for part in parts for v in part.components.get(name, [math.nan] * len(part.total))]
            for name in names
        },
        details=[row for part in parts for row in part.details],
        failed=[name for part in parts for name in part.failed],
        seconds={name: sum(part.seconds.get(name, 0.0) for part in parts) for name in scorers},
        errors={name: text for part in parts for name, text in part.errors.items()},
    )


@dataclass(frozen=True)
class WeightedScorer:
    """A scorer under the name it has in the recipe.

    Args:
        column_option: its option that names the field of a prompt which it reads; '' without one.
    """

    name: str
    weight: float
    scorer: GuardedScorer
    column_option: str = ""


class RewardComposer:
    """The reward of a run: total = sum of weight x score.

    Args:
        scorers: at least one.
        policy: retries, deadline, and what a failure does.
    """

    def __init__(self, scorers: Sequence[WeightedScorer], policy: FailurePolicy) -> None:
        if not scorers:
            raise ConfigError(
                "reward.scorers is empty: nothing would be optimised",
                remedy="add one, e.g. reward.scorers.ocr={kind: ocr, weight: 1.0}",
                choices=registry.names("reward"),
            )
        self._scorers, self._policy = tuple(scorers), policy
        self._requires = merge_requirements(entry.scorer.requires for entry in scorers)

    @classmethod
    def from_config(cls, reward: RewardConfig) -> RewardComposer:
        """Load and construct every scorer of the recipe.

        Raises:
            ConfigError: an unknown kind, option, policy or a weight that is no finite number.
            RewardError: a scorer cannot be set up (e.g. a model file is missing).
        """
        if reward.on_error not in FAILURE_POLICIES:
            raise ConfigError(f"reward.on_error={reward.on_error} is no failure policy", choices=FAILURE_POLICIES)
        if not reward.timeout_s > 0 or not 0 <= reward.retries <= MOST_RETRIES:
            raise ConfigError(
                f"reward.timeout_s={reward.timeout_s} must be above 0, and reward.retries={reward.retries} at least 0 "
                f"and at most {MOST_RETRIES}"
            )
        policy = FailurePolicy(reward.on_error, reward.retries, reward.timeout_s)
        return cls([_weighted_scorer(name, section) for name, section in reward.scorers.items()], policy)

    def requirements(self) -> ScorerRequirements:
        """Artifacts and fields that every sample must have, over all scorers."""
        return self._requires

    def needed_by(self) -> dict[str, str]:
        """Field of a prompt -> which scorers need it, and what else may be done, as the remedy of an error."""
        found: dict[str, list[WeightedScorer]] = {}
        for entry in self._scorers:
            for name in entry.scorer.requires.fields:
                found.setdefault(name, []).append(entry)
        return {name: _needed(entries) for name, entries in found.items()}

    def score(self, samples: Sequence[RewardSample]) -> ComposedReward:
        """Score N samples, one scorer after the other.

        Raises:
            ArtifactError, DataError: a sample lacks what a scorer declared.
            RewardError: a scorer failed (it raised, was late, or returned something else than numbers) and the policy
                is 'fail'.
            NonFiniteError: a score is NaN, infinite or too large and the policy is 'fail', or a weighted sum is.
        """
        self._check(samples)
        return self._combine(samples, [self._run(entry, samples) for entry in self._scorers])

    async def score_async(self, samples: Sequence[RewardSample]) -> ComposedReward:
        """Like :meth:`score` without blocking the event loop; the scorers run side by side."""
        self._check(samples)
        runs = [in_daemon_thread(functools.partial(self._run, entry, samples)) for entry in self._scorers]
        return self._combine(samples, await asyncio.gather(*runs))

    def _check(self, samples: Sequence[RewardSample]) -> None:
        for entry in self._scorers:
            check_samples(samples, entry.scorer.requires, f"the scorer '{entry.name}'")

    def _run(self, entry: WeightedScorer, samples: Sequence[RewardSample]) -> ScorerResult:
        return run_scorer(entry.name, entry.scorer, samples, self._policy)

    def _combine(self, samples: Sequence[RewardSample], results: Sequence[ScorerResult]) -> ComposedReward:
        entries = list(zip(self._scorers, results, strict=True))
        errors = {sample_id: text for result in results for sample_id, text in result.errors.items()}
        return ComposedReward(
            total=[_total([(e, r.scores[i]) for e, r in entries], sample) for i, sample in enumerate(samples)],
            components={f"{e.name}/{key}": values for e, result in entries for key, values in result.columns.items()},
            details=[{e.name: result.details[i] for e, result in entries} for i in range(len(samples))],
            failed=[sample.sample_id for sample in samples if sample.sample_id in errors],
            seconds={e.name: result.seconds for e, result in entries},
            errors=errors,
        )


def _needed(entries: Sequence[WeightedScorer]) -> str:
    who = " and ".join(f"the scorer '{entry.name}'" for entry in entries)
    columns = " ".join(f"reward.scorers.{e.name}.{e.column_option}=COLUMN" for e in entries if e.column_option)
    without = " ".join(f"'~reward.scorers.{entry.name}'" for entry in entries)
    verb = "needs" if len(entries) == 1 else "need"
    rename = f"name another column by {columns}, or " if columns else ""
    return f"{who} {verb} it: {rename}leave {'it' if len(entries) == 1 else 'them'} out by {without}"


def _total(scores: Sequence[tuple[WeightedScorer, float]], sample: RewardSample) -> float:
    """The weighted sum; NaN where a scorer gave none."""
    try:
        total = math.fsum(entry.weight * score for entry, score in scores)
    except (OverflowError, ValueError):  # a partial sum, or opposite terms, beyond what a number holds
        total = math.inf
    if not abs(total) <= LARGEST_SCORE and all(math.isfinite(score) for _, score in scores):
        terms = " + ".join(f"{entry.weight:g} x {score:g} ('{entry.name}')" for entry, score in scores)
        raise NonFiniteError(
            f"the reward of sample '{sample.sample_id}' is too large to be trained on: {terms}",
            remedy="lower the weights under reward.scorers",
        )
    return total


def _weighted_scorer(name: str, section: Mapping[str, Any]) -> WeightedScorer:
    """A scorer from its section {kind, weight (1 if left out), ...options of the kind}."""
    key = f"reward.scorers.{name}"
    if not isinstance(section, Mapping) or "kind" not in section:
        raise ConfigError(
            f"'{key}' names no kind of scorer", remedy=f"set {key}.kind", choices=registry.names("reward")
        )
    weight = section.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"{key}.weight={weight} is no finite number")
    options = plugin_options("reward", section["kind"], section, key=key)
    make: functools.partial[Scorer] = functools.partial(registry.load("reward", section["kind"]), options)
    try:
        scorer = GuardedScorer(make)
    except OmniPortableError:
        raise
    except (Exception, SystemExit) as error:
        raise RewardError(
            f"the scorer '{name}' of kind '{section['kind']}' cannot be set up: {type(error).__name__}: {error}",
            remedy="mend the scorer, or its options under " + key,
        ) from error
    if not isinstance(scorer.requires, ScorerRequirements):
        raise RewardError(f"the scorer '{name}' has requires={described(scorer.requires)}, no ScorerRequirements")
    column = "field" if hasattr(options, "field") else ""
    return WeightedScorer(name, float(weight), scorer, column)
