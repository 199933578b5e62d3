"""Edit distance against its recursive definition, and what counts as text."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.reward.text import edit_distance, normalise, similarity

short = st.text("abA1 é", max_size=7)


@functools.cache
def recursive(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    if a[0] == b[0]:
        return recursive(a[1:], b[1:])
    return 1 + min(recursive(a[1:], b), recursive(a, b[1:]), recursive(a[1:], b[1:]))


@given(short, short)
def test_edit_distance_is_the_recursive_definition(a, b):
    assert edit_distance(a, b) == recursive(a, b)


@given(short, short, short)
def test_edit_distance_is_a_metric(a, b, c):
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@given(short, short)
def test_similarity_lies_between_0_and_1(a, b):
    assert 0.0 <= similarity(a, b) <= 1.0
    assert (similarity(a, b) == 1.0) == (a == b)


@pytest.mark.parametrize(
    ("text", "keep", "case_sensitive", "expected"),
    [
        ("R-7 .", "alphanumeric", False, "r7"),
        ("R-7 .", "alphanumeric", True, "R7"),
        ("R-7 .", "visible", True, "R-7."),
        ("R-7 .", "all", False, "r-7 ."),
        ("\uff32\uff17", "alphanumeric", True, "R7"),
        ("Straße", "alphanumeric", False, "strasse"),
        ("鐵7", "alphanumeric", False, "鐵7"),
    ],
)
def test_normalise(text, keep, case_sensitive, expected):
    assert normalise(text, keep, case_sensitive) == expected
