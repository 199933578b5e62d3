"""The stages, each alone: rollout, groups, advantages, mini-batches, updates."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import ConsistencyError, LifecycleError, RewardError
from omni_portable.trainer.rollout_stage import RolloutStage
from omni_portable.trainer.stages import (
    AdvantageStage,
    UpdateStage,
    form_groups,
    reward_samples,
    split_batch,
)
from tests.support.requests import make_request
from tests.trainer.trainer_fakes import GroupMean, RecordingActor, RecordingEngine, make_reward, make_scored


def make_batch(count: int) -> TrainBatch:
    return TrainBatch(
        trajectories=make_scored(count),
        advantages=torch.arange(count, dtype=torch.float32),
        weights=torch.arange(count, dtype=torch.float32) + 10,
        old_log_probs=torch.arange(2 * count, dtype=torch.float32).reshape(count, 2),
    )


def ids(batch: TrainBatch) -> list[str]:
    return [t.request.request_id for t in batch.trajectories]


def test_an_aborted_request_stops_the_round_by_name() -> None:
    stage = RolloutStage(RecordingEngine(aborted=("r1",)))  # type: ignore[arg-type]
    with pytest.raises(LifecycleError, match="r1"):
        asyncio.run(stage.run([make_request(i) for i in range(3)]))


def test_a_schedule_the_engine_did_not_run_is_found() -> None:
    class OtherSchedule(RecordingEngine):
        async def generate(self, requests):
            result = await super().generate(requests)
            result.trajectories[1].schedule_fingerprint = "0000"
            return result

    with pytest.raises(ConsistencyError, match="'r1'.*ran 0000"):
        asyncio.run(RolloutStage(OtherSchedule()).run([make_request(i) for i in range(3)]))  # type: ignore[arg-type]


def test_scorers_see_prompt_artifacts_and_fields() -> None:
    trajectories = make_scored(2)
    trajectories[1].request = replace(trajectories[1].request, metadata={"ground_truth": "X"})
    sample = reward_samples(trajectories)[1]
    assert (sample.sample_id, sample.group_id, sample.prompt) == ("r1", "g0", "prompt 0")
    assert sample.metadata == {"ground_truth": "X"}
    assert sample.artifacts["image"].data[0, 0, 0] == 1


def test_groups_keep_order_and_their_own_rows() -> None:
    groups, dropped = form_groups(make_scored(6), make_reward([0, 1, 2, 3, 4, 5]), first_submission=40)
    assert dropped == 0
    assert [(g.group_id, g.submission) for g in groups] == [("g0", 40), ("g1", 41), ("g2", 42)]
    assert groups[1].rewards == [2, 3]
    assert groups[1].components == {"s/score": [2, 3]}
    assert [d["s"]["text"] for d in groups[1].details] == ["seen 2", "seen 3"]
    assert [t.request.request_id for t in groups[1].trajectories] == ["r2", "r3"]


def test_members_that_are_not_adjacent_are_one_group() -> None:
    rows = make_scored(4)
    mixed = [rows[0], rows[2], rows[1], rows[3]]
    groups, _ = form_groups(mixed, make_reward([0, 1, 2, 3]), 0)
    assert [g.rewards for g in groups] == [[0, 2], [1, 3]]


def test_a_group_with_a_failed_sample_is_left_out_whole() -> None:
    groups, dropped = form_groups(make_scored(6), make_reward([0, 1, 2, 3, 4, 5], failed=["r3"]), first_submission=10)
    assert dropped == 1
    assert [g.group_id for g in groups] == ["g0", "g2"]
    assert [g.submission for g in groups] == [10, 12], "a dropped group keeps its place in the order of submission"
    assert all(value == value for g in groups for value in g.rewards), "no NaN reaches training"


def test_no_group_left_is_an_error() -> None:
    with pytest.raises(RewardError, match="no group is left"):
        form_groups(make_scored(4), make_reward([0, 1, 2, 3], failed=["r0", "r2"]), 0)


def test_advantages_are_one_per_sample_in_group_order() -> None:
    groups, _ = form_groups(make_scored(4), make_reward([0, 2, 10, 20]), 0)
    batch = AdvantageStage(GroupMean()).run([groups[1], groups[0]], seed=3)
    assert ids(batch) == ["r2", "r3", "r0", "r1"]
    assert batch.advantages.tolist() == [-5, 5, -1, 1]
    assert batch.advantages.dtype == torch.float32


@given(count=st.integers(1, 13), size=st.integers(0, 15))
def test_mini_batches_cover_the_batch_once_in_order(count: int, size: int) -> None:
    batch = make_batch(count)
    parts = split_batch(batch, size)
    assert [name for part in parts for name in ids(part)] == ids(batch)
    assert torch.equal(torch.cat([p.advantages for p in parts]), batch.advantages)
    assert torch.equal(torch.cat([p.weights for p in parts]), batch.weights)
    assert torch.equal(torch.cat([p.old_log_probs for p in parts]), batch.old_log_probs)
    limit = size or count
    assert all(len(p.trajectories) == limit for p in parts[:-1])
    assert 0 < len(parts[-1].trajectories) <= limit


def test_a_batch_without_weights_stays_without() -> None:
    part = split_batch(replace(make_batch(4), weights=None, old_log_probs=None), 2)[1]
    assert part.weights is None
    assert part.old_log_probs is None


def test_updates_go_through_the_mini_batches_once_per_epoch() -> None:
    actor, seen = RecordingActor(), []
    stage = UpdateStage(actor, GroupMean(), mini_batch_size=2, epochs=2)  # type: ignore[arg-type]
    outcome = stage.run(make_batch(5), on_progress=lambda done, total: seen.append((done, total)))
    assert [ids(b) for b in actor.batches] == [["r0", "r1"], ["r2", "r3"], ["r4"]] * 2
    assert outcome.optimizer_steps == 6
    assert seen == [(i, 6) for i in range(1, 7)]


def test_metrics_are_means_over_the_optimizer_steps() -> None:
    outcome = UpdateStage(RecordingActor(), GroupMean(), 2, 2).run(make_batch(4))  # type: ignore[arg-type]
    assert outcome.metrics == pytest.approx({"actor/loss": 2.5, "actor/lr": 0.5})


def test_the_first_log_probs_are_those_before_any_update() -> None:
    outcome = UpdateStage(RecordingActor(), GroupMean(), 2, 3).run(make_batch(4))  # type: ignore[arg-type]
    assert outcome.first_actor.tolist() == [[0.0, 0.5], [1.0, 1.5]]
    assert [t.request.request_id for t in outcome.first_trajectories] == ["r0", "r1"]
