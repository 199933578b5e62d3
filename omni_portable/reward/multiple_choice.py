"""The scorer 'multiple_choice': is the letter in the answer tag the right one? Spec, options and scorer in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.answers import choice_letter, first_tag
from omni_portable.reward.requirements import require_field


@dataclass(frozen=True)
class MultipleChoiceOptions:
    artifact: str = "response"
    """Name of the text artifact to read."""
    field: str = "ground_truth"
    """Field of the prompt row that holds the right letter, alone or inside the tag."""
    tag: str = "answer"
    """The first <tag>...</tag> of a response holds its answer."""

    def __post_init__(self) -> None:
        if not self.tag.isalnum():
            raise ConfigError(f"the multiple_choice scorer's option tag={self.tag!r} is no name")


class MultipleChoiceScorer:
    """1 where the first tag holds the right letter, else 0; no tag, or one without a letter, is no answer.

    Component 'answered': 1 where a letter was given. Details: 'answer' (None without one) and 'target'.
    """

    name = "multiple_choice"

    def __init__(self, options: MultipleChoiceOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "text"}, fields=(options.field,))

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        """
        Raises:
            DataError: the right answer is missing or no letter.
        """
        output = RewardOutput(scores=[], components={"answered": []})
        for sample in batch:
            wanted = self._target(sample)
            inside = first_tag(str(sample.artifacts[self.options.artifact].data), self.options.tag)
            given = None if inside is None else choice_letter(inside)
            output.scores.append(float(given == wanted))
            output.components["answered"].append(float(given is not None))
            output.details.append({"answer": given, "target": wanted})
        return output

    def _target(self, sample: RewardSample) -> str:
        value = str(require_field(sample, self.options.field, "the multiple_choice scorer"))
        inside = first_tag(value, self.options.tag)
        letter = choice_letter(value if inside is None else inside)
        if letter is None:
            raise DataError(
                f"the multiple_choice scorer cannot use {value!r} as the answer of prompt {sample.prompt!r}: no letter"
            )
        return letter


SPEC = PluginSpec(
    name="multiple_choice",
    summary="1 where the first <answer> tag holds the right letter, else 0",
    target="omni_portable.reward.multiple_choice:MultipleChoiceScorer",
    options=MultipleChoiceOptions,
    capabilities={"artifacts": {"artifact": "text"}, "fields": ("field",)},
)
