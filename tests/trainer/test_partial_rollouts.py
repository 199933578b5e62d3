"""Responses that new weights interrupt: they go on where they were, and every token knows the weights that drew it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_backends.dataplane.local import LocalDataPlane
from omni_portable.config.schema import RolloutCorrectionConfig
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.tokens import TokenPrefix, TokenRequest, TokenTrajectory
from omni_portable.rollout.codec import pack, unpack
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.rollout.router import Router
from omni_portable.trainer.correction import correct_batch
from omni_portable.trainer.measure import agreement
from omni_portable.trainer.modes.gate import Gate
from omni_portable.trainer.modes.slots import Slots
from omni_portable.trainer.responses import response_metrics
from omni_portable.trainer.rollout_stage import RolloutStage
from tests.support.requests import make_group
from tests.support.token_models import token_request, token_trajectory
from tests.support.toy_tokens import END, ToyEngine, drawn_token, replayed, toy_stream, toy_weights


@dataclass(frozen=True)
class Plan:
    """Requests, how they are handed out, and after how many turns of the loop which weights interrupt them."""

    requests: Sequence[TokenRequest]
    interruptions: Sequence[tuple[int, int]]
    piece: int
    rows: int
    replicas: int


@st.composite
def plans(draw: st.DrawFn, changes: bool) -> Plan:
    shared = {
        "temperature": draw(st.sampled_from([0.0, 0.7, 1.0])),
        "top_p": draw(st.sampled_from([1.0, 0.9])),
        "top_k": draw(st.sampled_from([0, 3])),
        "stop": draw(st.sampled_from([(), ("bc",), ("d", "ee")])),
    }
    budgets = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    weights = st.integers(1, 4) if changes else st.just(0)
    return Plan(
        [token_request(i, max_new_tokens=budget, **shared) for i, budget in enumerate(budgets)],
        draw(st.lists(st.tuples(st.integers(0, 40), weights), max_size=5)),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 2)),
    )


def carry_out(plan: Plan) -> tuple[list[TokenTrajectory], dict[int, int], dict[str, float]]:
    """Trajectories, version -> number of its weights, and what the stage counted."""
    engines = {f"rollout-{i}": ToyEngine(max_num_seqs=plan.rows) for i in range(plan.replicas)}
    engine = Router(engines, piece_size=plan.piece) if plan.replicas > 1 else engines["rollout-0"]
    gate, held = Gate(), {0: 0}
    stage = RolloutStage(
        engine,
        piece_size=plan.piece,
        slots=Slots(plan.replicas),
        gate=gate,
        resubmit=True,
    )

    async def scene() -> list[TokenTrajectory]:
        drawing = asyncio.create_task(stage.run(plan.requests))
        for turns, weights in plan.interruptions:
            for _ in range(turns):
                await asyncio.sleep(0)
            gate.close()
            engine.pause()
            await gate.drained()
            version = max(held) + 1
            engine.update_weights(toy_stream(toy_weights(weights)), version)
            held[version] = weights
            engine.resume()
            gate.open()
        return list(await drawing)  # type: ignore[arg-type]

    return asyncio.run(scene()), held, stage.statistics()


@settings(max_examples=25, deadline=None)
@given(plans(changes=False))
def test_weights_that_did_not_change_say_what_they_would_have_said_without_interruption(plan: Plan) -> None:
    whole, _, _ = carry_out(Plan(plan.requests, (), plan.piece, plan.rows, 1))
    parts, _, counted = carry_out(plan)
    for left, right in zip(whole, parts, strict=True):
        assert left.request == right.request
        assert left.response_ids.tolist() == right.response_ids.tolist()
        assert left.finish_reason == right.finish_reason
        assert left.artifacts["response"].data == right.artifacts["response"].data
        torch.testing.assert_close(left.log_probs, right.log_probs, atol=1e-6, rtol=0)
        torch.testing.assert_close(left.sampled_log_probs, right.sampled_log_probs, atol=1e-6, rtol=0)
    assert (counted["rollout/interrupted/kept_tokens"] > 0) == (counted["rollout/interrupted/continued"] > 0)


@settings(max_examples=40, deadline=None)
@given(plans(changes=True))
def test_every_token_is_that_of_the_weights_that_it_names(plan: Plan) -> None:
    trajectories, held, _ = carry_out(plan)
    assert [t.request for t in trajectories] == list(plan.requests)
    for t in trajectories:
        ids, request = t.response_ids.tolist(), t.request
        tags = [t.policy_version] * t.length if t.policy_versions is None else t.policy_versions.tolist()
        assert tags == sorted(tags), "versions never decrease"
        assert t.policy_version == tags[0], "a trajectory is as old as its oldest token"
        assert (t.policy_versions is None) == (len(set(tags)) == 1)
        for at, version in enumerate(tags):
            w = toy_weights(held[version])
            assert ids[at] == drawn_token(w, request, t.inputs, ids[:at])
            log_prob = replayed(w, t.inputs, ids[: at + 1], request.scored_temperature)[at]
            torch.testing.assert_close(t.log_probs[at], log_prob, atol=1e-5, rtol=0)
            torch.testing.assert_close(t.sampled_log_probs[at], log_prob, atol=1e-5, rtol=0)
        assert 1 <= t.length <= request.max_new_tokens, "limits count the whole response"
        assert END not in ids[:-1], "nothing comes after the end"
        assert t.finish_reason == ("stop" if _ended(request, ids) else "length")
        assert all(not _ended(request, ids[:at]) for at in range(1, len(ids)))


def _ended(request: TokenRequest, ids: Sequence[int]) -> bool:
    text = "".join(chr(ord("a") + token) for token in ids if token != END)
    return ids[-1] == END or any(stop in text for stop in request.stop)


def test_interruptions_are_counted() -> None:
    requests = [token_request(i, max_new_tokens=12, stop=()) for i in range(2)]
    trajectories, _, counted = carry_out(Plan(requests, [(6, 1), (0, 2)], 2, 2, 1))
    assert counted["rollout/interrupted/continued"] >= 2
    assert counted["rollout/interrupted/kept_tokens"] >= 2
    assert response_metrics(trajectories)["response/mixed_versions"] > 0


def mixed_trajectory(index: int, tags: Sequence[int]) -> TokenTrajectory:
    return token_trajectory(index, len(tags), policy_version=min(tags), policy_versions=torch.tensor(tags))


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    group = ScoredGroup("g", 0, [mixed_trajectory(0, [3, 4, 5]), mixed_trajectory(1, [4, 5])], [0.0, 1.0])
    assert group.policy_version == 3
    buffer = ReplayBuffer(LocalDataPlane(), max_staleness=1)
    buffer.add(group)
    assert buffer.available(4) == 1
    assert buffer.available(5) == 0


def test_engine_mismatch_and_policy_lag_are_told_apart_token_by_token() -> None:
    trajectories = [mixed_trajectory(0, [1, 1, 2]), token_trajectory(1, 2, policy_version=2)]
    actor = torch.nn.utils.rnn.pad_sequence(
        [trajectories[0].log_probs + torch.tensor([9.0, 9.0, 0.25]), trajectories[1].log_probs],
        batch_first=True,
        padding_value=torch.nan,
    )
    figures = agreement(actor, trajectories, version=2)
    assert figures["rollout_corr/logprob_abs_diff/max"] == 0.25
    assert figures["policy_lag/logprob_abs_diff/mean"] == 9.0
    assert figures["policy_lag/samples"] == 1.0


def test_rollout_correction_weighs_each_token_against_the_version_that_drew_it() -> None:
    trajectory = mixed_trajectory(0, [1, 2])
    actor = (trajectory.log_probs + torch.log(torch.tensor([0.5, 1.0])))[None]
    config = RolloutCorrectionConfig(mode="decoupled", importance="step")
    batch, _ = correct_batch(TrainBatch([trajectory], torch.ones(1)), actor, config)
    assert batch.importance_weights is not None
    torch.testing.assert_close(batch.importance_weights[0], torch.tensor([0.5, 1.0]))


def test_groups_that_are_being_drawn_while_an_average_is_served_become_no_staler() -> None:
    """Serving it counts two versions more without any change of the policy."""
    buffer = ReplayBuffer(LocalDataPlane(), max_staleness=0)
    buffer.add(make_group("before", 0, [4]))
    buffer.shift_versions(4, 2)
    buffer.add(make_group("across", 1, [4, 6]))
    buffer.add(make_group("after", 2, [6]))
    buffer.add(make_group("stale", 3, [3]))
    assert buffer.available(6) == 3
    buffer.shift_versions(6, 2)
    assert buffer.available(8) == 3


@pytest.mark.parametrize(
    ("ids", "log_probs", "versions", "words"),
    [([1], [0.0, 0.0], [1], "shapes"), ([], [], [], "shapes"), ([1, 2], [0.0, 0.0], [2, 1], "versions")],
)
def test_a_beginning_whose_parts_do_not_fit_is_refused(
    ids: list[int], log_probs: list[float], versions: list[int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        TokenPrefix(torch.tensor(ids), torch.tensor(log_probs), torch.tensor(versions))


def test_a_beginning_longer_than_the_response_may_be_is_refused() -> None:
    prefix = TokenPrefix(torch.arange(7), torch.zeros(7), torch.zeros(7, dtype=torch.int64))
    with pytest.raises(ConfigError, match="max_new_tokens=6 and goes on after 7"):
        token_request(0, prefix=prefix)


def test_beginnings_travel_between_processes() -> None:
    prefix = TokenPrefix(torch.arange(3), torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([1, 1, 2]))
    back = unpack(pack([token_request(0, prefix=prefix), mixed_trajectory(1, [1, 2])]))
    assert back[0].prefix.policy_versions.tolist() == [1, 1, 2]
    assert torch.equal(back[0].prefix.log_probs, prefix.log_probs)
    assert back[1].policy_versions.tolist() == [1, 2]
