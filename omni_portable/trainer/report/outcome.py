"""What a run achieved on held-out prompts, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from omni_portable.trainer.report.read import RunData

DIGITS = 3
"""Digits of a score behind the point."""
CLEAR = 3.0
"""Standard errors from which on a change is called clear."""


@dataclass(frozen=True)
class Outcome:
    """Mean held-out scores before and after training with their standard errors.

    Args:
        before / after: None while that validation has not run.
        error: of the difference, taking the two validations as independent.
        paired_error: of the difference, using that both share prompts and noise; None where it was not computed.
        samples: number of held-out samples; of a single one no standard error is known.
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
    def shown_rise(self) -> float | None:
        """The difference of the two means as they are shown, so that sentence and figures agree."""
        if self.before is None or self.after is None:
            return None
        return round(round(self.after, DIGITS) - round(self.before, DIGITS), DIGITS)

    @property
    def sigma(self) -> float | None:
        """The rise in standard errors; None when there is no rise yet, or its error is 0 or not known."""
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
            return f"The held-out score is {figure(known)}; there is no other validation to compare it with."
        rise, last = self.shown_rise, figure(self.after)
        moved = "rose" if rise and rise > 0 else "fell" if rise else "stayed"
        way = f"{moved} from {figure(self.before)} to {last}" if rise else f"{moved} at {last}"
        if self.samples == 1:
            return f"On 1 held-out sample the score {way}; how much of it is chance, one sample cannot tell."
        text = f"On {self.samples} held-out samples the mean score {way}"
        if self.sigma is None:
            return f"{text}."
        strength = "a clear change" if abs(self.sigma) >= CLEAR else "chance can do as much"
        change = f"{figure(rise or 0.0, signed=True)} ± {figure(self.error)}"
        return f"{text}: {change}, {abs(self.sigma):.1f} standard errors ({strength})."


def figure(value: float, *, signed: bool = False, digits: int = DIGITS) -> str:
    """A number as people are shown it; zero has no sign."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f}"


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
