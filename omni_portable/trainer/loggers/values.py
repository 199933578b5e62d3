"""One policy for numbers that are not finite, shared by the loggers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from omni_portable.contracts.errors import NonFiniteError

UNDEFINED_ALLOWED = ("training/rollout_actor_probs_pearson_corr",)
"""Metrics that are undefined in legitimate cases (the correlation of constants)."""


@dataclass(frozen=True)
class LoggerOptions:
    """Keys of every logger."""

    undefined: list[str] = field(default_factory=lambda: list(UNDEFINED_ALLOWED))
    """Metrics (or patterns such as 'debug/*') that may be NaN or infinite; logged as absent, never as a number."""


def checked(step: int, metrics: Mapping[str, float], undefined: Sequence[str]) -> dict[str, float | None]:
    """The metrics as finite floats, None where one that may be undefined is.

    A metric that is not finite means that training has gone wrong; writing it down and going on would hide it.

    Raises:
        NonFiniteError: names the step and every metric concerned.
    """
    values = {name: float(value) for name, value in metrics.items()}
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    refused = [name for name in bad if not any(fnmatchcase(name, pattern) for pattern in undefined)]
    if refused:
        shown = ", ".join(f"{name}={values[name]}" for name in sorted(refused))
        raise NonFiniteError(
            f"step {step} has metrics that are not finite: {shown}",
            remedy="look at the rewards and the gradient norm of this step; lower actor.lr or set actor.grad_clip",
        )
    return {name: None if name in bad else value for name, value in values.items()}
