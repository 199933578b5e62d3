"""Least squares under non-negativity: from the rows of a profile to its costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from omni_portable.contracts.errors import ConfigError
from omni_portable.planning.placement.model import Costs, predict
from omni_portable.planning.placement.profile import Profile, Row

Array = npt.NDArray[np.float64]
MAX_CASES = 4096
SAME = 0.005
"""Fits whose relative errors differ by less explain the rows equally well."""
TINY = 1e-150
"""Columns of numbers up to that are nothing: what they would be multiplied by might be beyond all numbers."""


@dataclass(frozen=True)
class Fit:
    """Costs, and how well they give the rows back.

    Args:
        error: root mean square of the relative errors of step seconds.
        rollout_bound: rows taken to be held up by rollout, where both sides run beside each other and only the whole
            step was measured.
    """

    costs: Costs
    error: float
    rollout_bound: int


def fit(profile: Profile) -> list[Fit]:
    """All ways to explain the rows about equally well, the best first.

    Where only whole steps of two overlapping sides were measured, it is not known which side held them up; every case
    is fitted. Of equal ones the first has the fewest rows that rollout holds up.

    Raises:
        ConfigError: too many such rows to try all cases.
    """
    overheads = _overheads(profile)
    found: dict[tuple[float, ...], Fit] = {}
    for sides in _cases(profile.rows):
        equations = [line for row, side in zip(profile.rows, sides, strict=True)
                     for line in _equations(profile, row, side, overheads)]  # fmt: skip
        matrix = np.array([line[:4] for line in equations])
        values = np.array([line[4] for line in equations])
        scale = 1.0 / np.where(values > 0, values, 1.0)  # relative errors count
        solution = non_negative_least_squares(matrix * scale[:, None], values * scale)
        r0, r1, t0, t1 = map(float, solution)
        costs = replace(overheads, rollout_fixed=r0, rollout_token=r1, train_fixed=t0, train_token=t1)
        fitted = Fit(costs, _error(profile, costs), sides.count("rollout"))
        found.setdefault(tuple(np.round(solution, 9)), fitted)
    best = min(fitted.error for fitted in found.values())
    equal = [fitted for fitted in found.values() if fitted.error <= best + SAME]
    return sorted(equal, key=lambda fitted: (round(fitted.error, 4), fitted.rollout_bound))


def non_negative_least_squares(matrix: Array, values: Array) -> Array:
    """x >= 0 of least |matrix x - values|, by trying every set of columns; of equals the one with the fewest columns.

    Args:
        matrix: (rows, columns), a handful of columns; one in which no number is above `TINY` takes no part.
        values: (rows,).
    """
    # Columns of very different sizes would lose the small ones to the solver's cut-off of singular values.
    sizes = np.abs(matrix).max(axis=0)
    sizes = np.where(sizes > TINY, sizes, 0.0)
    scaled = matrix / np.where(sizes > 0, sizes, 1.0)
    columns = matrix.shape[1]
    best, least = np.zeros(columns), float(np.linalg.norm(values))
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(np.flatnonzero(sizes), size):
            part = np.linalg.lstsq(scaled[:, chosen], values, rcond=None)[0]
            if (part < 0).any():
                continue
            error = float(np.linalg.norm(scaled[:, chosen] @ part - values))
            if error < least - 1e-9:
                best, least = np.zeros(columns), error
                best[list(chosen)] = part / sizes[list(chosen)]
    return best


def _overheads(profile: Profile) -> Costs:
    """Means of what was measured on its own."""

    def mean(values: Sequence[float | None]) -> float:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else 0.0

    rows = profile.rows
    return Costs(
        0.0, 0.0, 0.0, 0.0,
        reward=mean([None if row.reward_s is None else row.reward_s / row.placement.prompts for row in rows]),
        sync=mean([None if row.sync_s is None else row.sync_s * row.placement.sync_rounds for row in rows]),
        switch=mean([row.switch_s for row in rows]),
    )  # fmt: skip


def _equations(profile: Profile, row: Row, side: str, overheads: Costs) -> list[list[float]]:
    """Lines (rollout_fixed, rollout_token, train_fixed, train_token, seconds) of one row."""
    placed = row.placement
    weight = profile.weight(row.tokens)
    drawn = placed.prompts / (placed.rollout_devices * profile.efficiency(placed.tensor_parallel))
    trained = placed.prompts / placed.train_devices
    rollout, train = [drawn, drawn * weight], [trained, trained * weight]
    if row.rollout_s is not None and row.train_s is not None:
        return [[*rollout, 0.0, 0.0, row.rollout_s], [0.0, 0.0, *train, row.train_s]]
    assert row.step_s is not None
    rest = row.step_s - overheads.sync / placed.sync_rounds
    if side == "rollout":
        return [[*rollout, 0.0, 0.0, rest]]
    if side == "training":
        return [[0.0, 0.0, *train, rest]]
    rest -= placed.prompts * overheads.reward + overheads.switch
    return [[*rollout, *train, max(rest, 0.0)]]


def _cases(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Which side holds each row up: 'rollout', 'training', or 'both' where that is not in question.

    Along the length of responses the side changes once at most, since both costs are straight lines in their weight.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    for index, row in enumerate(rows):
        if not row.staged and row.placement.max_staleness > 0:
            placed = row.placement
            groups.setdefault((placed.devices, placed.rollout_devices, placed.tensor_parallel), []).append(index)
    patterns = []
    for indices in groups.values():
        indices.sort(key=lambda index: rows[index].tokens)
        count = len(indices)
        kinds = {
            (first,) * changed + (second,) * (count - changed)
            for changed in range(count + 1)
            for first, second in (("training", "rollout"), ("rollout", "training"))
        }
        patterns.append([(indices, kind) for kind in sorted(kinds, key=lambda kind: (kind.count("rollout"), kind))])
    if math.prod(map(len, patterns)) > MAX_CASES:
        raise ConfigError(
            f"the profile has {sum(map(len, groups.values()))} rows of overlapping sides with nothing but 'step_s', "
            f"under {len(groups)} splits: too many ways to explain them",
            remedy="give 'rollout_s' and 'train_s' in these rows, or leave some out",
        )
    for chosen in itertools.product(*patterns):
        sides = ["both"] * len(rows)
        for indices, kind in chosen:
            for index, side in zip(indices, kind, strict=True):
                sides[index] = side
        yield sides


def _error(profile: Profile, costs: Costs) -> float:
    errors = []
    for row in profile.rows:
        found = predict(costs, profile, row.placement, row.tokens)
        if row.rollout_s is not None and row.train_s is not None:
            errors += [_relative(found.rollout_s, row.rollout_s), _relative(found.train_s, row.train_s)]
        else:
            assert row.step_s is not None
            errors.append(_relative(found.step_s, row.step_s))
    return math.sqrt(sum(error * error for error in errors) / len(errors))


def _relative(found: float, measured: float) -> float:
    return found / measured - 1 if measured > 0 else found
