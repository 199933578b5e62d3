"""Windows stay in their bounds, depend on the seed alone, and reach every allowed place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.contracts.errors import ConfigError
from omni_portable.samplers.windows import all_steps, fixed_steps, random_subset, random_window

steady = settings(deadline=None, max_examples=60)


@st.composite
def ranges(draw):
    num_steps = draw(st.integers(2, 50))
    low = draw(st.integers(0, num_steps - 2))
    high = draw(st.integers(low + 1, num_steps - 1))
    size = draw(st.integers(1, high - low))
    return num_steps, size, low, high


@steady
@given(ranges(), st.integers(-(2**40), 2**63))
def test_windows_are_contiguous_in_range_and_repeatable(arguments, seed):
    num_steps, size, low, high = arguments
    window = random_window(num_steps, size, low, high, seed)
    assert window == tuple(range(window[0], window[0] + size))
    assert low <= window[0]
    assert window[-1] < high <= num_steps - 1
    assert window == random_window(num_steps, size, low, high, seed)


@steady
@given(ranges(), st.integers(-(2**40), 2**63))
def test_subsets_are_sorted_in_range_and_repeatable(arguments, seed):
    num_steps, size, low, high = arguments
    subset = random_subset(num_steps, size, low, high, seed)
    assert list(subset) == sorted(set(subset))
    assert len(subset) == size
    assert low <= subset[0]
    assert subset[-1] < high
    assert subset == random_subset(num_steps, size, low, high, seed)


def test_every_start_and_every_step_is_reached_about_equally():
    starts = [random_window(10, 3, 1, 8, seed)[0] for seed in range(2000)]
    assert set(starts) == {1, 2, 3, 4, 5}
    assert all(330 < starts.count(start) < 470 for start in set(starts))  # 400 each, sd 18
    members = [step for seed in range(2000) for step in random_subset(10, 3, 1, 8, seed)]
    assert set(members) == set(range(1, 8))
    assert all(760 < members.count(step) < 955 for step in set(members))  # 857 each, sd 22


def test_all_steps_leave_out_the_last_one():
    assert all_steps(8) == (0, 1, 2, 3, 4, 5, 6)
    with pytest.raises(ConfigError):
        all_steps(1)


def test_fixed_steps_are_taken_as_given():
    assert fixed_steps(8, [0, 3, 7]) == (0, 3, 7)


@pytest.mark.parametrize("steps", [[], [3, 1], [2, 2], [-1, 2], [0, 8]])
def test_impossible_fixed_steps_are_refused(steps):
    with pytest.raises(ConfigError):
        fixed_steps(8, steps)


@pytest.mark.parametrize("function", [random_window, random_subset])
@pytest.mark.parametrize(("size", "low", "high"), [(4, 0, 3), (0, 0, 3), (1, 3, 3), (1, 0, 8), (1, -1, 3)])
def test_windows_that_do_not_fit_are_refused(function, size, low, high):
    with pytest.raises(ConfigError):
        function(8, size, low, high, 0)
