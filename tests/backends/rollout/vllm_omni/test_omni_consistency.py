"""One family in detail: batches, plans, updates. `test_omni_agreement` compares every family."""

from __future__ import annotations

import torch

from omni_portable.contracts.rollout import SamplingPlan
from tests.backends.rollout.vllm_omni.drawing import STEPS, drawn, largest_gap
from tests.support.engines import require_installed

require_installed("vllm", "vllm_omni")


def test_rollout_native_and_actor_agree_before_and_after_a_sync(engine_pair):
    pair = engine_pair("sd3")
    requests = pair.requests(4)
    before = pair.draw(requests)
    for moved in (False, True):
        if moved:
            pair.move()
        version = pair.sync()
        assert pair.engine.weights_checksum() == pair.actor.weights_checksum()
        ours, theirs = pair.draw(requests), drawn(pair.native, requests)
        recorded, replayed = torch.stack([t.log_probs for t in ours]), pair.replayed(ours)
        assert (recorded - replayed).abs().max().item() <= 1e-5
        assert torch.corrcoef(torch.stack([recorded.exp().flatten(), replayed.exp().flatten()]))[0, 1] >= 0.9999
        assert largest_gap(ours, theirs) <= 1e-4
        assert largest_gap(ours, theirs, "next_latents") <= 1e-4
        assert all(t.policy_version == version for t in ours)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.conditioning.keys() == other.conditioning.keys()
            assert all(torch.equal(mine.conditioning[name], other.conditioning[name]) for name in mine.conditioning)
    assert largest_gap(before, ours) > 1e-4


def test_rows_of_a_batch_follow_the_order_of_the_requests(engine_pair):
    pair = engine_pair("sd3")
    requests = pair.requests(8)
    (alone,) = pair.draw(requests[3:4])
    among = pair.draw(requests)
    shuffled = pair.draw([requests[row] for row in (5, 3, 0, 7, 1, 6, 2, 4)])
    assert [t.batch_size for t in (alone, among[3], shuffled[1])] == [1, 8, 8]
    assert [t.batch_row for t in (alone, among[3], shuffled[1])] == [0, 3, 1]
    assert shuffled[1].request.request_id == "r3"


def test_batches_are_the_native_engines_packs(engine_pair):
    pair = engine_pair("sd3")
    pair.engine.statistics()
    trajectories = pair.draw(pair.requests(18))
    assert [(t.batch_size, t.batch_row) for t in trajectories] == [
        *[(8, row) for row in range(8)],
        *[(8, row) for row in range(8)],
        (2, 0),
        (2, 1),
    ]
    figures = pair.engine.statistics()
    assert figures["perf/rollout/batches"] == 3
    assert figures["perf/rollout/batch_size/max"] == 8
    assert figures["perf/rollout/requests"] == 18
    assert figures["perf/rollout/forwards"] == 3 * 4
    assert figures["perf/rollout/prompt_cache/hits"] + figures["perf/rollout/prompt_cache/misses"] == 36


def test_requests_of_different_shapes_in_one_call_keep_their_order(engine_pair):
    pair = engine_pair("sd3")
    small, long = pair.requests(3, height=32, width=32), pair.requests(2, first=3, steps=6)
    mixed = [small[0], long[0], small[1], long[1], small[2]]
    trajectories = pair.draw(mixed)
    assert [t.request.request_id for t in trajectories] == [r.request_id for r in mixed]
    assert [t.batch_size for t in trajectories] == [3, 2, 3, 2, 3]
    assert largest_gap(trajectories, drawn(pair.native, mixed)) <= 1e-4


def test_step_level_batches_draw_the_same_samples_with_full_weights(engine_pair):
    pair = engine_pair("sd3", lora=0, options=(("step_execution", True),))
    pair.move()
    pair.sync()
    assert pair.engine.weights_checksum() == pair.actor.weights_checksum()
    requests = [*pair.requests(12), *pair.requests(3, first=12, steps=6)]
    pair.engine.statistics()
    ours = pair.draw(requests)
    assert largest_gap(ours, drawn(pair.native, requests)) <= 1e-4
    assert (torch.stack([t.log_probs for t in ours[:12]]) - pair.replayed(ours[:12])).abs().max().item() <= 1e-5
    assert max(t.batch_size for t in ours) == 8
    assert pair.engine.statistics()["perf/rollout/batch_size/max"] == 8


def test_plans_that_keep_every_step_and_the_negative_prompt_are_carried_out(engine_pair):
    pair = engine_pair("sd3")
    plan = SamplingPlan("sde", 0.7, (1,), record_every_step=True, keep_negative=True)
    requests = pair.requests(2, plan=plan, guidance_scale=1.0)
    ours, theirs = pair.draw(requests), drawn(pair.native, requests)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.step_indices.tolist() == other.step_indices.tolist() == list(range(STEPS))
        assert mine.log_probs.isnan().tolist() == [True, False, True, True]
        assert {name for name in mine.conditioning if name.startswith("negative.")} >= {"negative.prompt_embeds"}
    assert largest_gap(ours, theirs, "latents") <= 1e-4
