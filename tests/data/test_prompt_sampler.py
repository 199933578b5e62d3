"""The order of prompts: a function of seed and step that covers every row once per epoch and never twice in a batch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.contracts.errors import DataError
from omni_portable.data.prompts import PromptRow, PromptSampler

sizes = st.tuples(st.integers(1, 23), st.integers(1, 23)).map(sorted)


@given(sizes, st.booleans(), st.integers(0, 5))
def test_each_epoch_holds_every_row_once(size, shuffle, seed):
    batch_size, count = size
    sampler = PromptSampler(range(count), batch_size, shuffle, seed)
    epochs = 3
    flat = [row for step in range(epochs * count // batch_size + 1) for row in sampler.batch(step)]
    for epoch in range(epochs):
        assert sorted(flat[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(sizes, st.booleans(), st.integers(0, 5))
def test_no_batch_holds_a_row_twice(size, shuffle, seed):
    batch_size, count = size
    sampler = PromptSampler(range(count), batch_size, shuffle, seed)
    for step in range(5 * count // batch_size + 2):
        assert max(Counter(sampler.batch(step)).values()) == 1


@given(sizes, st.lists(st.integers(0, 40), max_size=12))
def test_a_batch_does_not_depend_on_what_was_asked_before(size, steps):
    batch_size, count = size
    used = PromptSampler(range(count), batch_size, True, 3)
    for step in steps:
        assert used.batch(step) == PromptSampler(range(count), batch_size, True, 3).batch(step)


def test_known_order():
    """The order is part of a run's identity: a change breaks resumed runs."""
    rows = [PromptRow(name, f"prompt {name}") for name in "0123456"]
    sampler = PromptSampler(rows, 3, True, 0)
    batches = ["".join(row.prompt_id for row in sampler.batch(step)) for step in range(4)]
    assert batches == ["034", "152", "631", "620"]  # epoch 1 is 6312045 by its keys; its 6 waits for the next batch


def test_epochs_and_seeds_differ():
    def epoch(number, seed):
        return PromptSampler(range(50), 50, True, seed).batch(number)

    assert epoch(0, 0) != epoch(1, 0)
    assert epoch(0, 0) != epoch(0, 1)
    assert PromptSampler(range(50), 50, False, 0).batch(9) == list(range(50))


def test_permutations_are_even():
    """Over many epochs every row comes first about equally often (6000 draws, 6 rows: 5 sigma is 144)."""
    sampler = PromptSampler(range(6), 6, True, 11)
    first = Counter(sampler.batch(step)[0] for step in range(6000))
    assert all(abs(count - 1000) < 144 for count in first.values())


@pytest.mark.parametrize("batch_size", [0, 4])
def test_more_prompts_than_there_are_is_refused(batch_size):
    with pytest.raises(DataError, match=f"data.train_batch_size={batch_size}"):
        PromptSampler(range(3), batch_size, True, 0)
