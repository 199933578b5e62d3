"""How long things take: the profile's seconds, alone or scattered."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from omni_portable.contracts.errors import ConfigError
from omni_portable.planning.placement.model import Costs, predict
from omni_portable.planning.placement.profile import Profile

Ratio = Callable[[], float]
"""Draws the duration of one piece of work, relative to its mean."""
BLOCK = 1024
KINDS = ("constant", "lognormal:CV", "measured")


def make_ratio(spec: str, seed: str, measured: Sequence[float] = ()) -> Ratio:
    """A source of ratios with mean 1.

    Args:
        spec: 'constant'; 'lognormal:CV' with the coefficient of variation; 'measured' draws one of `measured`.
        seed: of this source alone.

    Raises:
        ConfigError: another text, or nothing was measured.
    """
    generator = np.random.default_rng(random.Random(seed).getrandbits(64))
    if spec == "constant":
        return lambda: 1.0
    if spec == "measured":
        known = [ratio for ratio in measured if ratio > 0]
        if not known:
            raise ConfigError(
                "--times measured needs a profile with 'rollout_s' and 'train_s'", remedy="use lognormal:0.2"
            )
        mean = sum(known) / len(known)
        scaled = [ratio / mean for ratio in known]
        return _in_blocks(lambda: generator.choice(scaled, BLOCK))
    kind, _, text = spec.partition(":")
    try:
        variation = float(text) if kind == "lognormal" else -1.0
    except ValueError:
        variation = -1.0
    if not 0 <= variation <= 10:
        raise ConfigError(f"--times {spec!r} is no distribution", choices=list(KINDS))
    sigma = math.sqrt(math.log1p(variation * variation))
    return _in_blocks(lambda: generator.lognormal(-sigma * sigma / 2, sigma, BLOCK))


def _in_blocks(draw: Callable[[], npt.NDArray[np.float64]]) -> Ratio:
    """One at a time of what is drawn BLOCK at a time, which is much faster."""

    def one_by_one() -> Iterator[float]:
        while True:
            yield from draw().tolist()

    return one_by_one().__next__


def measured_ratios(profile: Profile, costs: Costs) -> tuple[list[float], list[float]]:
    """Measured over predicted seconds of every row, of rollout and of training."""
    rollout, train = [], []
    for row in profile.rows:
        if row.rollout_s is not None and row.train_s is not None:
            found = predict(costs, profile, row.placement, row.tokens)
            rollout += [row.rollout_s / found.rollout_s] if found.rollout_s else []
            train += [row.train_s / found.train_s] if found.train_s else []
    return rollout, train
