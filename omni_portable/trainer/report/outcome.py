"""What a run achieved on held-out prompts, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from omni_portable.trainer.report.read import RunData

CLEAR = 3.0
"""Standard errors from which on a change is called clear."""


@dataclass(frozen=True)
class Outcome:
    """Mean held-out scores before and after training with their standard errors.

    Args:
        before / after: None while that validation has not run.
        error: of the difference, taking the two validations as independent.
        paired_error: of the difference, using that both share prompts and noise; None where it was not computed.
        samples: number of held-out samples.
    """

    before: float | None = None
    before_error: float = 0.0
    after: float | None = None
    after_error: float = 0.0
    error: float = 0.0
    paired_error: float | None = None
    samples: int = 0

    @property
    def rise(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def sigma(self) -> float | None:
        """The rise in standard errors; None when there is no rise yet or its error is 0."""
        return self.rise / self.error if self.rise is not None and self.error > 0 else None

    @property
    def clear(self) -> bool:
        """The score rose by at least :data:`CLEAR` standard errors."""
        return self.sigma is not None and self.sigma >= CLEAR

    def sentence(self) -> str:
        """The result in one sentence for readers who want nothing else."""
        if self.before is None or self.after is None:
            known = self.before if self.after is None else self.after
            if known is None:
                return "No validation has run, so nothing can be said about held-out prompts."
            return f"The held-out score is {known:.3f}; a second validation, to compare with, has not run yet."
        rise = self.after - self.before
        verb = "rose" if rise > 0 else "fell" if rise < 0 else "stayed"
        text = f"On {self.samples} held-out samples the mean score {verb} from {self.before:.3f} to {self.after:.3f}"
        if self.sigma is None:
            return f"{text}."
        strength = "a clear change" if abs(self.sigma) >= CLEAR else "chance can do as much"
        return f"{text}: {rise:+.3f} ± {self.error:.3f}, {abs(self.sigma):.1f} standard errors ({strength})."


def read_outcome(data: RunData) -> Outcome:
    """From summary.json where the run has finished, otherwise from the validation metrics logged so far."""
    summary = data.summary
    if all(name in summary for name in ("before", "after", "before_stderr", "after_stderr", "rise_stderr")):
        return _from_summary(summary)
    means, errors = data.series("validation/reward_mean"), dict(data.series("validation/reward_stderr"))
    counts = [value for _, value in data.series("validation/count") if value]
    first = means[0] if means and means[0][0] == 0 else None
    last = means[-1] if means and means[-1][0] > 0 else None
    before_error = (errors.get(first[0]) or 0.0) if first else 0.0
    after_error = (errors.get(last[0]) or 0.0) if last else 0.0
    return Outcome(
        before=first[1] if first else None,
        before_error=before_error,
        after=last[1] if last else None,
        after_error=after_error,
        error=math.hypot(before_error, after_error),
        samples=int(counts[-1]) if counts else 0,
    )


def _from_summary(summary: dict[str, Any]) -> Outcome:
    return Outcome(
        before=summary["before"],
        before_error=summary["before_stderr"],
        after=summary["after"],
        after_error=summary["after_stderr"],
        error=summary["rise_stderr"],
        paired_error=summary.get("paired_rise_stderr"),
        samples=int(summary.get("samples", 0)),
    )
