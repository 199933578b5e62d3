"""The scorer 'regex_match': does a text match a pattern? Spec, options and scorer in one, without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.requirements import require_field


@dataclass(frozen=True)
class RegexMatchOptions:
    artifact: str = "response"
    """Name of the text artifact to read."""
    pattern: str = ""
    """Regular expression (Python's), the same for all prompts; or give `field`."""
    field: str = ""
    """Field of the prompt row that holds its regular expression; or give `pattern`."""
    full: bool = False
    """True: the whole text must match, without white space around it; False: a part of it suffices."""
    ignore_case: bool = False
    """Whether upper and lower case are the same."""

    def __post_init__(self) -> None:
        if bool(self.pattern) == bool(self.field):
            raise ConfigError("the regex_match scorer needs one of the options pattern and field")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"the regex_match scorer's option pattern={self.pattern!r} is no pattern: {error}"
            ) from error


class RegexMatchScorer:
    """1 where the text matches, else 0. A dot matches line ends too. Details: 'text' and 'pattern'."""

    name = "regex_match"

    def __init__(self, options: RegexMatchOptions) -> None:
        self.options = options
        fields = (options.field,) if options.field else ()
        self.requires = ScorerRequirements(artifacts={options.artifact: "text"}, fields=fields)

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        """
        Raises:
            DataError: a row's pattern is missing or is none.
        """
        output = RewardOutput(scores=[])
        for sample in batch:
            pattern = self._pattern(sample)
            text = str(sample.artifacts[self.options.artifact].data).strip()
            found = pattern.fullmatch(text) if self.options.full else pattern.search(text)
            output.scores.append(float(found is not None))
            output.details.append({"text": text, "pattern": pattern.pattern})
        return output

    def _pattern(self, sample: RewardSample) -> re.Pattern[str]:
        field = self.options.field
        text = str(require_field(sample, field, "the regex_match scorer")) if field else self.options.pattern
        try:
            return re.compile(text, re.DOTALL | (re.IGNORECASE if self.options.ignore_case else 0))
        except re.error as error:
            raise DataError(f"the field '{field}' of prompt {sample.prompt!r} holds no pattern: {text!r}") from error


SPEC = PluginSpec(
    name="regex_match",
    summary="1 where a response matches a regular expression, else 0",
    target="omni_portable.reward.regex_match:RegexMatchScorer",
    options=RegexMatchOptions,
    capabilities={"artifacts": {"artifact": "text"}},
)
