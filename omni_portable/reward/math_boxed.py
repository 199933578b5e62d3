"""The scorer 'math_boxed': a mathematical answer in a box, right and well-formed. Spec and options only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class MathBoxedOptions:
    artifact: str = "response"
    """Name of the text artifact to read."""
    field: str = "ground_truth"
    """Field of the prompt row that holds the right answer: a letter, or mathematics in LaTeX."""
    options_field: str = "options"
    """Field with the options 'A. TEXT' of a question whose answer is a letter; rows may lack it."""
    template: Literal["answer_boxed", "boxed"] = "answer_boxed"
    """'answer_boxed': \\boxed{} inside one pair of <answer> tags (MMK12's); 'boxed': \\boxed{} alone."""
    format_score: float = 0.3
    """What a well-formed response adds to its accuracy, before both are divided by 1 + this."""
    timeout_s: float = 10.0
    """Seconds for one comparison of expressions; one that takes longer counts as unequal."""

    def __post_init__(self) -> None:
        if not 0 <= self.format_score < float("inf"):
            raise ConfigError(f"the math_boxed scorer's option format_score={self.format_score} must be at least 0")
        if not self.timeout_s > 0:
            raise ConfigError(f"the math_boxed scorer's option timeout_s={self.timeout_s} must be above 0")


SPEC = PluginSpec(
    name="math_boxed",
    summary="(accuracy + format) / (1 + format_score): a right answer in \\boxed{}, compared by value (math-verify)",
    target="omni_portable.reward.math_boxed_scorer:MathBoxedScorer",
    options=MathBoxedOptions,
    capabilities={"artifacts": {"artifact": "text"}, "fields": ("field",)},
)
