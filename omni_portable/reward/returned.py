"""What a scorer returned, read strictly: N real numbers per column, or an error that names the scorer and the thing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from omni_portable.contracts.errors import RewardError
from omni_portable.contracts.reward import RewardOutput, RewardSample

LARGEST_SCORE = 1e15
"""Training reckons with rewards in fp32, whose largest number is 3.4e38, and squares them."""
LARGEST_COMPONENT = 3.4e38
"""Charts hold fp32."""
SHOWN = 60
"""Characters of a returned value that an error shows."""
REMEDY = "mend the scorer: score() returns RewardOutput(scores=[...]) with one number per sample, in their order"


@dataclass
class ScorerResult:
    """One scorer's answer for N samples: 'score' and its components as `columns`, NaN for samples in `errors`.

    Args:
        not_numbers: samples among those in `errors` whose value was no number at all.
    """

    columns: dict[str, list[float]]
    details: list[dict[str, Any]]
    seconds: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)
    not_numbers: set[str] = field(default_factory=set)

    @property
    def scores(self) -> list[float]:
        return self.columns["score"]


def read_returned(name: str, output: object, samples: Sequence[RewardSample]) -> ScorerResult:
    """The output in columns. Single values that are no finite number of a sensible size go into `errors`.

    Raises:
        RewardError: the output as a whole is wrong: no RewardOutput, no lists, or lists of another length; names the
            scorer and what it returned.
    """
    who = f"the scorer '{name}'"
    if not isinstance(output, RewardOutput):
        missing = " (is its `return` missing?)" if output is None else ""
        raise RewardError(f"{who} returned {described(output)}{missing}, which is no RewardOutput", remedy=REMEDY)
    if not isinstance(output.components, Mapping):
        raise RewardError(f"{who} returned components={described(output.components)}, no mapping", remedy=REMEDY)
    columns = {"score": _listed(who, "scores", output.scores)}
    for key, values in output.components.items():
        if not isinstance(key, str) or not key.isprintable() or not key.strip():
            raise RewardError(f"{who} returned a component of the name {key!r}, which is no printable text")
        if key != "score":  # the scores are never replaced
            columns[key] = _listed(who, f"components[{key!r}]", values)
    details = _details(who, output.details) or [{} for _ in samples]
    sized: dict[str, Sized] = {**columns, "details": details}
    for column, counted in sized.items():
        if len(counted) != len(samples):
            raise RewardError(
                f"{who} returned {len(counted)} values of '{column}' for {len(samples)} samples "
                f"('{samples[0].sample_id}' to '{samples[-1].sample_id}')",
                remedy=REMEDY,
            )
    return _numbers(who, columns, details, samples)


def _numbers(
    who: str, columns: Mapping[str, list[object]], details: list[dict[str, Any]], samples: Sequence[RewardSample]
) -> ScorerResult:
    result = ScorerResult({column: [] for column in columns}, details)
    for column, values in columns.items():
        largest = LARGEST_SCORE if column == "score" else LARGEST_COMPONENT
        for sample, value in zip(samples, values, strict=True):
            number = _number(value)
            result.columns[column].append(math.nan if number is None else number)
            if number is None:
                problem = f"{who} returned {column}={described(value)}, which is no number"
                result.not_numbers.add(sample.sample_id)
            elif not math.isfinite(number):
                problem = f"{who} returned {column}={number}"
            elif abs(number) > largest:
                problem = f"{who} returned {column}={number:g}, beyond the {largest:g} that can be reckoned with"
            else:
                continue
            result.errors.setdefault(sample.sample_id, problem)
    for index, sample in enumerate(samples):
        if sample.sample_id in result.errors:
            for numbers in result.columns.values():
                numbers[index] = math.nan
    return result


def _listed(who: str, what: str, values: object) -> list[object]:
    """A list, tuple, or one-dimensional array or tensor as a list."""
    if not isinstance(values, list | tuple) and getattr(values, "ndim", None) == 1:
        values = values.tolist()  # type: ignore[attr-defined]
    if not isinstance(values, list | tuple):
        raise RewardError(f"{who} returned {what}={described(values)}, which is no list of numbers", remedy=REMEDY)
    return list(values)


def _number(value: object) -> float | None:
    """A real number as float, infinite where it is too large for one; None for anything else, text among it."""
    if not isinstance(value, Real) and getattr(value, "ndim", None) == 0:
        value = value.item()  # type: ignore[attr-defined]  # an element of an array or tensor
    if not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]  # numbers.Real declares no order


def _details(who: str, details: object) -> list[dict[str, Any]]:
    """Rows of plain data, which any process and file can hold."""
    if details is None:
        return []
    if not isinstance(details, list | tuple):
        raise RewardError(f"{who} returned details={described(details)}, which is no list of mappings", remedy=REMEDY)
    rows = []
    for row in details:
        if not isinstance(row, Mapping):
            raise RewardError(f"{who} returned details that hold {described(row)}, which is no mapping", remedy=REMEDY)
        try:
            rows.append({str(key): _plain(value) for key, value in row.items()})
        except RecursionError as error:
            raise RewardError(f"{who} returned details that contain themselves", remedy=REMEDY) from error
    return rows


def _plain(value: object) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)


def described(value: object) -> str:
    """A value of any kind in a few words: None, or its type and the start of its text."""
    if value is None:
        return "None"
    text = " ".join(repr(value).split())
    return f"{text[:SHOWN]}{'...' if len(text) > SHOWN else ''} ({type(value).__name__})"
