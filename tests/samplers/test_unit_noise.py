"""Noise belongs to the request: same bits in any batch, different for every key."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan
from omni_portable.samplers.noise import INITIAL, noise_seed, normal, unit_noise
from omni_portable.samplers.schedule import flow_match_schedule

REQUEST = RolloutRequest("r", "g", "p", 0, 7, "a cat", 8, 8, flow_match_schedule(4), SamplingPlan())
steady = settings(deadline=None, max_examples=40)
keys = st.tuples(
    st.integers(0, 2**40), st.text(max_size=8), st.integers(0, 99), st.integers(-1, 99), st.text(max_size=8)
)


@steady
@given(st.lists(st.tuples(st.text(max_size=5), st.integers(0, 50)), min_size=1, max_size=6), st.integers(-1, 20))
def test_a_row_is_the_same_whatever_the_batch(names, step):
    requests = [replace(REQUEST, prompt_id=prompt, sample_index=index) for prompt, index in names]
    batch = unit_noise(requests, step, (2, 3))
    assert batch.shape == (len(names), 2, 3)
    assert batch.dtype == torch.float32
    for row, request in enumerate(requests):
        assert torch.equal(batch[row], unit_noise([request], step, (2, 3))[0])
    assert torch.equal(batch.flip(0), unit_noise(requests[::-1], step, (2, 3)))


@steady
@given(keys, keys)
def test_different_keys_have_different_seeds(left, right):
    assert 0 <= noise_seed(*left) < 2**63
    assert (noise_seed(*left) == noise_seed(*right)) == (left == right)


def test_fields_cannot_be_confused_with_each_other():
    assert noise_seed(1, "2|3", 4, 5) != noise_seed(1, "2", 3, 5)
    assert noise_seed(1, "a", 0, 5, "b") != noise_seed(1, "a|b", 0, 5, "")


def test_the_bits_never_change():
    """Runs are repeatable across releases: these values may only change with a note in the changelog."""
    assert noise_seed(7, "p", 0, INITIAL) == GOLDEN_SEED
    assert normal(GOLDEN_SEED, (4,)).tolist() == GOLDEN_NOISE


def test_it_is_standard_normal():
    count = 400_000
    noise = normal(1, (count,)).double()
    assert abs(noise.mean().item()) < 4 / math.sqrt(count)
    assert abs(noise.std().item() - 1) < 4 / math.sqrt(2 * count)
    inside = (noise.abs() < 1.0).double().mean().item()
    assert inside == pytest.approx(math.erf(1 / math.sqrt(2)), abs=4 * 0.47 / math.sqrt(count))


def test_an_empty_batch_has_no_rows():
    assert unit_noise([], 0, (2, 3)).shape == (0, 2, 3)


GOLDEN_SEED = 5144159660310967390
GOLDEN_NOISE = [-0.10524570941925049, -0.6742141246795654, 0.5647024512290955, 1.3175958395004272]
