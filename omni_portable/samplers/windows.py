"""Which denoising steps are stochastic: pure functions of (number of steps, seed). Torch-free.

A window is a sorted tuple of step indices; steps outside it are ODE steps. The last step (sigma' = 0) is never chosen
unless it is named explicitly: its noise would stay in the image (and 'cps' has none there).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from omni_portable.contracts.errors import ConfigError


def all_steps(num_steps: int) -> tuple[int, ...]:
    """Every step but the last (Flow-GRPO)."""
    _require(num_steps >= 2, f"a schedule of {num_steps} step(s) has no step besides the last one", "num_steps >= 2")
    return tuple(range(num_steps - 1))


def fixed_steps(num_steps: int, steps: Sequence[int]) -> tuple[int, ...]:
    """The steps as given: sorted, without repetition, each in [0, num_steps)."""
    _require(len(steps) > 0, "the list of stochastic steps is empty", "name at least one step")
    _require(
        list(steps) == sorted(set(steps)), f"stochastic steps {list(steps)} must increase", "sort them, remove repeats"
    )
    _require(
        steps[0] >= 0 and steps[-1] < num_steps,
        f"stochastic steps {list(steps)} do not fit a schedule of {num_steps} steps",
        f"use indices from 0 to {num_steps - 1}",
    )
    return tuple(steps)


def random_window(num_steps: int, size: int, low: int, high: int, seed: int) -> tuple[int, ...]:
    """`size` consecutive steps inside [low, high); the start is uniform in low ... high - size (MixGRPO)."""
    _check_range(num_steps, size, low, high)
    start = low + _uniform(seed, high - size - low + 1)
    return tuple(range(start, start + size))


def random_subset(num_steps: int, size: int, low: int, high: int, seed: int) -> tuple[int, ...]:
    """`size` different steps of [low, high), sorted; every subset is equally likely."""
    _check_range(num_steps, size, low, high)
    ranked = sorted(range(low, high), key=lambda step: _digest(seed, step))
    return tuple(sorted(ranked[:size]))


def _check_range(num_steps: int, size: int, low: int, high: int) -> None:
    _require(
        0 <= low < high <= num_steps - 1,
        f"the window range [{low}, {high}) does not fit a schedule of {num_steps} steps",
        f"use 0 <= low < high <= {num_steps - 1} (the last step cannot be drawn)",
    )
    _require(
        1 <= size <= high - low,
        f"a window of {size} steps does not fit the range [{low}, {high})",
        f"use a size from 1 to {high - low} or widen the range",
    )


def _digest(seed: int, value: int) -> bytes:
    return hashlib.blake2b(b"window|%d|%d" % (seed, value), digest_size=16).digest()


def _uniform(seed: int, bound: int) -> int:
    """Uniform in [0, bound); a hash rather than a library generator, whose stream may change between versions."""
    return int.from_bytes(_digest(seed, -1), "big") % bound


def _require(condition: bool, problem: str, remedy: str) -> None:
    if not condition:
        raise ConfigError(problem, remedy=remedy)
