"""Comparing nested numbers with a tolerance. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| <= absolute + relative |expected|."""

    relative: float = 1e-5
    absolute: float = 1e-6

    def used(self, actual: float, expected: float) -> float:
        """Share of the tolerance that the difference uses up: at most 1 passes; infinite where one is not finite."""
        if math.isfinite(actual) and math.isfinite(expected):
            return abs(actual - expected) / (self.absolute + self.relative * abs(expected))
        same = actual == expected or (math.isnan(actual) and math.isnan(expected))
        return 0.0 if same else math.inf


@dataclass(frozen=True)
class Comparison:
    """Result for one case.

    Args:
        worst: largest share of the tolerance used (infinite where the structures differ).
        problem: the first thing that is wrong, by its path, or empty.
        values: numbers compared.
    """

    worst: float
    problem: str
    values: int

    @property
    def passed(self) -> bool:
        return not self.problem


def compare(actual: Any, expected: Any, tolerance: Tolerance) -> Comparison:
    """Compare every number in `expected` (sections, lists, numbers) with the one at the same place in `actual`.

    Outputs that `expected` does not name are ignored; one that it names and `actual` lacks is a failure.
    """
    worst, problem, values = 0.0, "", 0
    for path, got, wanted in _walk("", actual, expected):
        used = math.inf if isinstance(got, str) else tolerance.used(got, wanted)
        values += 1
        worst = max(worst, used)
        if used > 1.0 and not problem:
            detail = got if isinstance(got, str) else f"got {got:.9g}, expected {wanted:.9g}"
            problem = f"{path}: {detail}"
    return Comparison(worst, problem, values)


def _walk(path: str, actual: Any, expected: Any) -> Iterator[tuple[str, float | str, float]]:
    """(path, actual number or a description of what stands there instead, expected number)."""
    if isinstance(expected, dict):
        for key, item in expected.items():
            where = f"{path}.{key}" if path else str(key)
            if isinstance(actual, dict) and key in actual:
                yield from _walk(where, actual[key], item)
            else:
                yield where, "this output is missing", 0.0
    elif isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            yield path, f"expected a list of {len(expected)}, got {_describe(actual)}", 0.0
            return
        for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
            yield from _walk(f"{path}[{index}]", got, wanted)
    elif isinstance(actual, (int, float)):
        yield path, float(actual), float(expected)
    else:
        yield path, f"expected a number, got {_describe(actual)}", 0.0


def _describe(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__
