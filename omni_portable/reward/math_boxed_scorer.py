"""Accuracy and form of mathematical answers, as published for MMK12 (MM-Eureka, arXiv 2503.07365, and VeRL-Omni)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from omni_portable.contracts.errors import DataError
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.answers import (
    BOX,
    choice_letter,
    first_tag,
    last_boxed,
    last_letter,
    last_number,
    option_texts,
    single_tag,
)
from omni_portable.reward.math_boxed import MathBoxedOptions
from omni_portable.reward.math_client import MathClient
from omni_portable.reward.math_plain import settled
from omni_portable.reward.requirements import require_field

MAX_LENGTH = 1000
"""Characters of an answer; longer ones are wrong."""


class MathBoxedScorer:
    """score = (accuracy + format) / (1 + format_score), in [0, 1].

    accuracy: 1 where the answer is right; 0.5 where a letter was asked for and the right option's content was given.
    The answer is the last \\boxed{} inside the first <answer> tag (of the whole response where there is no tag); where
    nothing is boxed, the tag's content, or the last letter or number of the response.
    format: half of `format_score` for exactly one pair of <answer> tags and half for a box inside it; with template
    'boxed' all of it for a box.

    Components: 'accuracy', 'format'. Details: 'answer', 'target', and 'undecided' where a comparison took too long.
    """

    name = "math_boxed"

    def __init__(self, options: MathBoxedOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "text"}, fields=(options.field,))
        self._client = MathClient(options.timeout_s)

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        """
        Raises:
            DataError: a right answer that is missing or empty, or options that cannot be read.
        """
        output = RewardOutput(scores=[], components={"accuracy": [], "format": []})
        for sample in batch:
            text = str(sample.artifacts[self.options.artifact].data)
            wanted = str(require_field(sample, self.options.field, "the math_boxed scorer")).strip()
            form, answer = self._format(text), self._answer(text, is_letter(wanted))
            accuracy, undecided = self._accuracy(sample, wanted, answer)
            output.scores.append((accuracy + form) / (1.0 + self.options.format_score))
            output.components["accuracy"].append(accuracy)
            output.components["format"].append(form)
            output.details.append({"answer": answer, "target": wanted} | ({"undecided": True} if undecided else {}))
        return output

    def _format(self, text: str) -> float:
        if self.options.template == "boxed":
            return self.options.format_score * (last_boxed(text) is not None)
        inside = first_tag(text)
        return self.options.format_score * (single_tag(text) + (inside is not None and BOX in inside)) / 2.0

    def _answer(self, text: str, letter: bool) -> str | None:
        inside = first_tag(text) if self.options.template == "answer_boxed" else None
        boxed = last_boxed(text if inside is None else inside)
        if boxed is not None:
            return boxed
        if inside is not None:
            return inside
        return last_letter(text) if letter else last_number(text)

    def _accuracy(self, sample: RewardSample, wanted: str, answer: str | None) -> tuple[float, bool]:
        """Accuracy, and whether a comparison was given up."""
        if not answer or len(answer) > MAX_LENGTH:
            return 0.0, False
        if not is_letter(wanted):
            equal = self._equal(wanted, answer)
            return float(bool(equal)), equal is None
        given = choice_letter(answer)
        if given is not None:
            return float(given == wanted.upper()), False
        content = option_texts(self._options(sample)).get(wanted.upper())
        equal = self._equal(content, answer) if content else False
        return 0.5 * bool(equal), equal is None

    def _equal(self, wanted: str, given: str) -> bool | None:
        known = settled(wanted, given)
        return self._client.equal(wanted, given) if known is None else known

    def _options(self, sample: RewardSample) -> Sequence[str] | dict[str, str]:
        value = sample.metadata.get(self.options.options_field) or []
        if isinstance(value, str):  # verl keeps them as JSON
            try:
                value = json.loads(value)
            except ValueError as error:
                raise self._no_options(sample, value) from error
        if not isinstance(value, list | dict):
            raise self._no_options(sample, value)
        return value

    def _no_options(self, sample: RewardSample, value: object) -> DataError:
        return DataError(
            f"the field '{self.options.options_field}' of prompt {sample.prompt!r} holds {value!r}, not options"
        )


def is_letter(answer: str) -> bool:
    """Whether the right answer is a letter of a multiple-choice question."""
    return len(answer) == 1 and answer.upper() in "ABCDEFGH"
