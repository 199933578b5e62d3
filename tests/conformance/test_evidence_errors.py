"""Distances: relative and absolute, per row, and never small where something is missing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.conformance.evidence.errors import absolute_errors, relative_errors, worst


@given(scale=st.floats(1e-6, 1e6), factor=st.floats(1e-6, 1.0), rows=st.integers(1, 4))
def test_a_relative_error_is_that_of_the_scale(scale: float, factor: float, rows: int) -> None:
    expected = torch.randn(rows, 3, 5, generator=torch.Generator().manual_seed(rows)).double() * scale
    errors = relative_errors(expected * (1 + factor), expected, 1)
    assert errors.shape == (rows,)
    assert errors.tolist() == pytest.approx([factor] * rows, rel=1e-6)


def test_each_row_has_its_own_error() -> None:
    expected = torch.ones(2, 3, 4)
    actual = expected.clone()
    actual[1, 2, 0] += 2.0
    assert relative_errors(actual, expected, 2).tolist() == [[0, 0, 0], [0, 0, 1.0]]
    assert worst(absolute_errors(actual, expected)) == 2.0


def test_what_should_be_zero() -> None:
    assert relative_errors(torch.zeros(2, 3), torch.zeros(2, 3), 1).tolist() == [0.0, 0.0]
    assert relative_errors(torch.full((1, 3), 1e-30), torch.zeros(1, 3), 1).tolist() == [math.inf]


def test_nan_is_the_worst() -> None:
    assert math.isnan(worst([1.0, math.nan, 2.0]))
    assert math.isnan(worst(relative_errors(torch.tensor([[math.nan]]), torch.ones(1, 1), 1)))
    assert worst([]) == 0.0


def test_bytes_do_not_wrap() -> None:
    assert absolute_errors(torch.tensor([0], dtype=torch.uint8), torch.tensor([255], dtype=torch.uint8)).item() == 255


@pytest.mark.parametrize("compare", [lambda a, b: relative_errors(a, b, 1), absolute_errors])
def test_other_shapes_are_refused(compare) -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        compare(torch.ones(2, 3), torch.ones(2, 1))
