"""What a conformance check is and what comes of it. A check measures; thresholds decide; nothing passes unmeasured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from omni_portable.conformance.context import Context

Suite = Literal["quick", "full"]
Status = Literal["passed", "failed", "recorded", "not_run"]
Group = Literal[
    "identity",
    "precision",
    "attention",
    "collectives",
    "memory",
    "determinism",
    "noise",
    "weight-sync",
    "consistency",
    "golden",
    "learning",
    "throughput",
]


class NotRun(Exception):  # noqa: N818 - it is no error: it is why a check has no result
    """Raised by a check that cannot run here; its text is the reason, for people."""


@dataclass(frozen=True)
class Measurement:
    """One figure.

    Args:
        name: what was measured, unique within its check ('forward_error').
        value: as measured; NaN never satisfies a threshold.
        unit: 'bytes', 's', 'images/s', '' for pure numbers.
        relation: how value and threshold must stand; '' records the value without judging it.
        threshold: None where `relation` is ''.
    """

    name: str
    value: float
    unit: str = ""
    relation: Literal["", "<=", ">=", "=="] = ""
    threshold: float | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the threshold holds; None where there is none."""
        if not self.relation or self.threshold is None:
            return None
        if math.isnan(self.value):
            return False
        if self.relation == "<=":
            return self.value <= self.threshold
        if self.relation == ">=":
            return self.value >= self.threshold
        return self.value == self.threshold


@dataclass(frozen=True)
class Outcome:
    """What a check found.

    Args:
        measurements: at least one.
        detail: a sentence for people.
        facts: names and versions that were found, as text.
        series: curves for the report's plots, name -> values; all curves of a check share one plot.
    """

    measurements: Sequence[Measurement]
    detail: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        id: stable across releases and devices: 'GROUP.WHAT', lower case with hyphens, e.g. 'memory.sleep-level-1'.
        group: for the report's rows.
        title: what is claimed when it passes, one sentence.
        suite: 'quick' checks run in both suites, 'full' ones in the full suite only.
        run: measures; raises `NotRun` where it cannot, and any `OmniPortableError` counts as a failure.
        remedy: what to do when it fails, in the form of an error's remedy: no capital, no full stop.
    """

    id: str
    group: Group
    title: str
    suite: Suite
    run: Callable[[Context], Outcome]
    remedy: str


@dataclass(frozen=True)
class Result:
    """A check's entry in the report; `reason` says why it failed or was not run, and is empty otherwise."""

    id: str
    group: Group
    title: str
    status: Status
    reason: str = ""
    remedy: str = ""
    seconds: float = 0.0
    measurements: tuple[Measurement, ...] = ()
    detail: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
