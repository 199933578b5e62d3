"""The scorer 'exact_match': is the response the wanted text? Spec, options and scorer in one, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.requirements import require_field
from omni_portable.reward.text import Keep, normalise


@dataclass(frozen=True)
class ExactMatchOptions:
    artifact: str = "response"
    """Name of the text artifact to read."""
    field: str = "ground_truth"
    """Field of the prompt row that holds the wanted text."""
    keep: Keep = "all"
    """Characters that count: 'alphanumeric', 'visible' (all but white space) or 'all' (but white space around)."""
    case_sensitive: bool = False
    """Whether upper and lower case count as different."""


class ExactMatchScorer:
    """1 where both texts are equal after normalisation, else 0. Details: 'text' and 'target'."""

    name = "exact_match"

    def __init__(self, options: ExactMatchOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "text"}, fields=(options.field,))

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        """Scores of 0 or 1.

        Raises:
            DataError: the wanted text is missing.
        """
        output = RewardOutput(scores=[])
        for sample in batch:
            wanted = str(require_field(sample, self.options.field, "the exact_match scorer"))
            text = str(sample.artifacts[self.options.artifact].data)
            output.scores.append(float(self._normalise(text) == self._normalise(wanted)))
            output.details.append({"text": text, "target": wanted})
        return output

    def _normalise(self, text: str) -> str:
        return normalise(text, self.options.keep, self.options.case_sensitive).strip()


SPEC = PluginSpec(
    name="exact_match",
    summary="1 where a response is the wanted text, else 0",
    target="omni_portable.reward.exact_match:ExactMatchScorer",
    options=ExactMatchOptions,
    capabilities={"artifacts": {"artifact": "text"}, "fields": ("field",)},
)
