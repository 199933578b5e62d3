"""Group advantages and preference pairs."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.algorithms.advantages import group_advantages
from omni_portable.algorithms.flow_grpo.algorithm import FlowGRPO
from omni_portable.algorithms.flow_grpo.options import FlowGRPOOptions
from omni_portable.algorithms.pairs import best_worst_pairs
from omni_portable.contracts.errors import NonFiniteError
from omni_portable.samplers.schedule import flow_match_schedule

steady = settings(deadline=None, max_examples=40)
reward = st.floats(-10, 10, width=32)
scored = st.lists(st.tuples(reward, st.sampled_from("abcd")), min_size=1, max_size=24)


@steady
@given(scored, st.booleans(), st.booleans(), st.sampled_from([0, 1]))
def test_every_group_is_centred_and_lone_samples_have_none(pairs, global_std, normalize, ddof):
    rewards = torch.tensor([r for r, _ in pairs])
    groups = [g for _, g in pairs]
    advantages = group_advantages(
        rewards, groups, global_std=global_std, normalize_by_std=normalize, std_ddof=ddof
    ).double()
    assert advantages.isfinite().all()
    for group in set(groups):
        own = advantages[[i for i, g in enumerate(groups) if g == group]]
        assert abs(own.sum().item()) < 1e-4 * (1 + own.abs().max().item())
        if len(own) == 1:
            assert own.item() == 0.0


@steady
@given(scored, st.randoms(use_true_random=False), st.booleans())
def test_order_does_not_matter(pairs, random, global_std):
    shuffled = list(range(len(pairs)))
    random.shuffle(shuffled)
    rewards, groups = torch.tensor([r for r, _ in pairs]), [g for _, g in pairs]
    straight = group_advantages(rewards, groups, global_std=global_std)
    mixed = group_advantages(rewards[shuffled], [groups[i] for i in shuffled], global_std=global_std)
    torch.testing.assert_close(mixed, straight[shuffled], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("ddof", "global_std", "expected"),
    [(1, True, [-1, 1, -1, 1]), (0, True, [-1, 1, -1, 1]), (1, False, [-1, 1, -1, 1]), (0, False, [-1, 1, -1, 1])],
)
def test_known_values(ddof, global_std, expected):
    rewards = torch.tensor([1.0, 3.0, 0.0, 2.0])
    spread = rewards.std(correction=ddof) if global_std else torch.tensor([0.0, 2.0]).std(correction=ddof)
    scale = 1 / (spread.item() + 1e-4)
    got = group_advantages(rewards, ["a", "a", "b", "b"], std_ddof=ddof, global_std=global_std)
    torch.testing.assert_close(got, torch.tensor(expected) * scale)


def test_published_values_of_the_two_conventions():
    """[1, 3 | 0, 2]: 0.77454 in VeRL-Omni (one step), 0.89435 in flow_grpo."""
    rewards, groups = torch.tensor([1.0, 3.0, 0.0, 2.0]), [0, 0, 1, 1]
    assert group_advantages(rewards, groups, std_ddof=1)[1].item() == pytest.approx(0.77454, abs=1e-5)
    assert group_advantages(rewards, groups, std_ddof=0)[1].item() == pytest.approx(0.89435, abs=1e-5)
    own = group_advantages(rewards, groups, std_ddof=0, global_std=False)
    assert own[1].item() == pytest.approx(0.99990, abs=1e-5)


def test_equal_rewards_give_exact_zeros():
    rewards = torch.tensor([0.3, 0.3, 0.3, 0.1, 0.9])
    for global_std in (True, False):
        got = group_advantages(rewards, ["a", "a", "a", "b", "b"], global_std=global_std)
        assert got[:3].tolist() == [0.0, 0.0, 0.0]
        assert got[4] > 0


def test_a_single_sample_is_no_error():
    assert group_advantages(torch.tensor([2.0]), ["a"]).tolist() == [0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_rewards_name_their_group(bad):
    with pytest.raises(NonFiniteError, match="prompt-7"):
        group_advantages(torch.tensor([1.0, bad]), ["prompt-3", "prompt-7"])


@pytest.mark.parametrize("size", [1, 3, 6])
def test_advantages_cannot_depend_on_the_number_of_stochastic_steps(size):
    algorithm = FlowGRPO(FlowGRPOOptions(window_mode="random", window_size=size))
    assert len(algorithm.sampling_plan(flow_match_schedule(8), 1).stochastic_steps) == size
    got = algorithm.advantages(torch.tensor([1.0, 3.0, 0.0, 2.0]), ["a", "a", "b", "b"])
    assert got[1].item() == pytest.approx(0.77454, abs=1e-5)
    assert set(inspect.signature(algorithm.advantages).parameters) == {"rewards", "groups"}
    with pytest.raises(ValueError, match="belong together"):  # rewards broadcast over steps are refused
        algorithm.advantages(torch.ones(4, size), ["a", "a", "b", "b"])


def test_pairs_are_best_and_worst_in_order_of_appearance():
    groups = ["b", "a", "b", "a", "a", "c"]
    assert best_worst_pairs(groups, [0.1, 0.5, 0.9, -1.0, 0.2, 3.0]) == [2, 0, 1, 3]
    assert best_worst_pairs(["a", "a", "a"], [1.0, 1.0, 1.0]) == [0, 2]
    assert best_worst_pairs(["a", "b"], [1.0, 1.0]) == []
    with pytest.raises(NonFiniteError):
        best_worst_pairs(["a", "a"], [1.0, math.nan])
