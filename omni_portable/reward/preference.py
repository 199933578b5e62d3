"""The scorer 'preference': which side of a given pair a sample is. Spec, options and scorer in one, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.reward import GIVEN_SAMPLE, RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.requirements import require_field


@dataclass(frozen=True)
class PreferenceOptions:
    fields: list[str] = field(default_factory=list)
    """Fields with the score of each given sample of a prompt, best first (win_score, lose_score); empty: 1 for the
    first, 0 for the others."""

    def __post_init__(self) -> None:
        if len(self.fields) == 1:
            raise ConfigError(f"the preference scorer's option fields={self.fields} names one side of a pair")


class PreferenceScorer:
    """Scores of samples that the dataset gave, by their place in its targets.

    A sample that was drawn (in validation) is on neither side: its score is 0. Component 'given': 1 for given samples.
    """

    name = "preference"

    def __init__(self, options: PreferenceOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements()

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        """
        Raises:
            DataError: a score that is missing, no number, or does not fall from the chosen to the rejected sample.
        """
        given = [sample.metadata.get(GIVEN_SAMPLE) for sample in batch]
        scores = [
            0.0 if place is None else self._score(sample, place) for sample, place in zip(batch, given, strict=True)
        ]
        return RewardOutput(scores, {"given": [float(place is not None) for place in given]})

    def _score(self, sample: RewardSample, place: int) -> float:
        if not self.options.fields:
            return 1.0 if place == 0 else 0.0
        if place >= len(self.options.fields):
            raise DataError(
                f"the preference scorer has no field for sample {place} of prompt {sample.prompt!r}",
                remedy="name as many fields as data.targets gives samples",
            )
        scores = [self._number(sample, name) for name in self.options.fields]
        if any(better <= worse for better, worse in zip(scores, scores[1:], strict=False)):
            named = ", ".join(f"{name}={score:g}" for name, score in zip(self.options.fields, scores, strict=True))
            raise DataError(f"the scores of prompt {sample.prompt!r} do not fall from chosen to rejected: {named}")
        return scores[place]

    @staticmethod
    def _number(sample: RewardSample, name: str) -> float:
        value = require_field(sample, name, "the preference scorer")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"the preference scorer cannot use {name}={value!r} of prompt {sample.prompt!r}: no number")
        return float(value)


SPEC = PluginSpec(
    name="preference",
    summary="1 for the chosen sample of a given pair and 0 for the other, or the dataset's own scores",
    target="omni_portable.reward.preference:PreferenceScorer",
    options=PreferenceOptions,
    capabilities={"needs_given_samples": True},
)
