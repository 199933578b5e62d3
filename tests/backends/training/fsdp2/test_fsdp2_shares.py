from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_backends.training.fsdp2.layout import Layout
from omni_backends.training.fsdp2.shares import check_batch, deal, in_order
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import CapabilityError, ConsistencyError
from tests.backends.training.toy import make_trajectories

TRAJECTORIES = make_trajectories(12)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 12),
    size=st.integers(1, 5),
    layout=st.sampled_from([Layout(1), Layout(2), Layout(3), Layout(2, sequence=2), Layout(1, tensor=3)]),
    kept=st.lists(st.booleans(), min_size=12, max_size=12),
    train=st.booleans(),
)
def test_every_sample_is_dealt_once_in_rounds_of_one_kind(count, size, layout, kept, train):
    weights = torch.tensor([float(k) for k in kept[:count]])
    weights[0] = 1.0
    batch = TrainBatch(TRAJECTORIES[:count], torch.arange(float(count)), weights=weights)
    rounds = deal(batch, size, layout.data, train=train)
    seen = []
    for dealt in rounds:
        assert len(dealt) == layout.data
        assert len({share.backward for share in dealt}) == 1
        for share in dealt:
            trained = share.batch.weights is not None and bool((share.batch.weights > 0).any())
            assert trained == share.backward
            if share.kind != "repeat":
                seen += share.batch.advantages.tolist()
    assert sorted(seen) == list(range(count))
    backward = [dealt[0].backward for dealt in rounds]
    assert backward == sorted(backward)  # a gradient is summed in the last backward, so no forward comes after it
    answers = [
        [float(dealt[layout.data_rank(rank)].batch.advantages[0]) for dealt in rounds] for rank in range(layout.size)
    ]
    starts = [float(part) for part in range(0, count, size)]
    assert in_order(answers, rounds, layout) == starts


def test_shares_hold_no_media():
    batch = TrainBatch(TRAJECTORIES, torch.zeros(12))
    share = deal(batch, 4, 2, train=True)[0][0]
    assert [t.artifacts for t in share.batch.trajectories] == [{}] * 4


def test_samples_that_need_other_forwards_are_refused_where_ranks_must_agree():
    guided = [replace(t, request=replace(t.request, guidance_scale=3.0)) for t in TRAJECTORIES[:4]]
    batch = TrainBatch([*guided, *TRAJECTORIES[4:8]], torch.zeros(8))
    check_batch(batch, 4, rows="transitions", alike=False, routed=False)
    with pytest.raises(ConsistencyError, match="with and without guidance"):
        check_batch(batch, 4, rows="transitions", alike=True, routed=False)


def test_models_with_experts_need_the_same_steps_on_every_rank():
    other = [replace(t, step_indices=torch.tensor([1, 3])) for t in TRAJECTORIES[:4]]
    mixed = TrainBatch([*other, *TRAJECTORIES[4:8]], torch.zeros(8))
    check_batch(mixed, 4, rows="transitions", alike=True, routed=False)
    with pytest.raises(ConsistencyError, match="expert by the step"):
        check_batch(mixed, 4, rows="transitions", alike=True, routed=True)
    with pytest.raises(CapabilityError, match="expert by the noise level"):
        check_batch(mixed, 4, rows="noised", alike=True, routed=True)
