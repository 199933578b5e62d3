from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.rollout import SamplingPlan, Schedule
from omni_portable.rollout.batching import check_request, plan_packs, shape_key
from tests.support.requests import PLAN, SCHEDULE, make_request

OTHER_SCHEDULE = Schedule(sigmas=(1.0, 0.5, 0.0))


def latent_shape(request):
    return (4, request.height // 8, request.width // 8)


VARIANTS = [
    {},
    {"height": 64},
    {"schedule": OTHER_SCHEDULE, "plan": replace(PLAN, stochastic_steps=(0, 1))},
    {"guidance_scale": 4.5},
    {"plan": replace(PLAN, kind="cps")},
    {"plan": replace(PLAN, noise_level=0.8)},
    {"plan": replace(PLAN, include_normalizer=False)},
    {"plan": replace(PLAN, record_transitions=False)},
    {"plan": replace(PLAN, record_every_step=True)},
    {"plan": replace(PLAN, keep_negative=True)},
    {"plan": replace(PLAN, stochastic_steps=(1,))},
    {"plan": SamplingPlan()},
]


def test_each_difference_that_matters_makes_its_own_pack():
    requests = [make_request(i, **variant) for i, variant in enumerate(VARIANTS)]
    packs = plan_packs(requests, latent_shape, 32)
    assert [pack.rows for pack in packs] == [(i,) for i in range(len(VARIANTS))]


def test_prompt_seed_and_window_position_do_not_separate_requests():
    requests = [
        make_request(0),
        make_request(1, prompt="other", seed=5, metadata={"ground_truth": "x"}),
        make_request(2, plan=replace(PLAN, stochastic_steps=(0, 3))),
    ]
    (pack,) = plan_packs(requests, latent_shape, 32)
    assert pack.rows == (0, 1, 2)
    assert pack.key.latent_shape == (4, 4, 4)
    assert not pack.key.with_negative


def test_like_requests_are_cut_contiguously_like_micro_batches():
    packs = plan_packs([make_request(i) for i in range(10)], latent_shape, 4)
    assert [pack.rows for pack in packs] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


@given(st.lists(st.integers(0, len(VARIANTS) - 1), max_size=40), st.integers(1, 9))
def test_packs_partition_the_requests_in_order(kinds, limit):
    requests = [make_request(i, **VARIANTS[kind]) for i, kind in enumerate(kinds)]
    packs = plan_packs(requests, latent_shape, limit)
    assert sorted(row for pack in packs for row in pack.rows) == list(range(len(requests)))
    assert [pack.rows[0] for pack in packs] == sorted(pack.rows[0] for pack in packs)
    for pack in packs:
        assert 1 <= len(pack.rows) <= limit
        assert list(pack.rows) == sorted(pack.rows)
        assert {shape_key(requests[row], latent_shape(requests[row])) for row in pack.rows} == {pack.key}
    # as few packs as the limit allows
    assert len(packs) == sum(-(-kinds.count(kind) // limit) for kind in set(kinds))


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        plan_packs([], latent_shape, 0)


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, stochastic_steps=(0, 4)),
        replace(PLAN, stochastic_steps=(-1, 2)),
        replace(PLAN, stochastic_steps=(2, 1)),
        replace(PLAN, stochastic_steps=(1, 1)),
        replace(PLAN, kind="ode"),
        replace(PLAN, noise_level=0.0),
    ],
)
def test_impossible_plans_are_refused_by_name(plan):
    with pytest.raises(ConfigError, match="request 'r3'"):
        check_request(make_request(3, plan=plan))


@pytest.mark.parametrize(
    "plan", [PLAN, SamplingPlan(), replace(PLAN, stochastic_steps=tuple(range(SCHEDULE.num_steps)))]
)
def test_possible_plans_pass(plan):
    check_request(make_request(plan=plan))
