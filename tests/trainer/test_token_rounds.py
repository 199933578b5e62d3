"""The loop's parts with responses: requests, refilling, selection, figures that leave padding out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from omni_portable.config.schema import DataConfig, RolloutConfig, RunConfig, TrainerConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.errors import DataError, WeightSyncError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.registry import NoOptions
from omni_portable.contracts.tokens import TokenRequest
from omni_portable.data.prompts import PromptRow, PromptSampler
from omni_portable.reward.compose import ComposedReward
from omni_portable.rollout.replay_buffer import ReplayBuffer
from omni_portable.trainer.consistency import SyncProof, logprob_metrics, stack_log_probs
from omni_portable.trainer.drawing import drawing
from omni_portable.trainer.measure import batch_shape_gaps, row_timesteps
from omni_portable.trainer.producer import Producer
from omni_portable.trainer.progress import SilentProgress
from omni_portable.trainer.responses import response_metrics
from omni_portable.trainer.stages import AdvantageStage
from omni_portable.trainer.timing import StageClock
from tests.support.requests import make_trajectory
from tests.support.token_models import token_request, token_trajectory

ROWS = [PromptRow(name, f"prompt {name}", {"system_prompt": "kind"} if name == "a" else {}) for name in "abcdef"]
CONFIG = RunConfig(
    rollout=RolloutConfig(n=2, max_new_tokens=5, temperature=0.8, top_p=0.9, top_k=7, stop=["!"]),
    trainer=TrainerConfig(seed=3, validation_samples=1),
    data=DataConfig(train_batch_size=2),
)


def algorithm(name: str, **options: Any) -> Any:
    return registry.load("algorithm", name)(registry.spec("algorithm", name).options(**options))


def test_requests_of_every_kind_of_round() -> None:
    source = drawing(CONFIG, algorithm("grpo"), None)
    training = source.training(ROWS[:2], 1, "step-1")
    assert [r.request_id for r in training] == [f"step-1/0000{i}/00{s}" for i in (0, 1) for s in (0, 1)]
    assert all(
        isinstance(r, TokenRequest) and (r.temperature, r.top_p, r.top_k, r.stop) == (0.8, 0.9, 7, ("!",))
        for r in training
    )
    assert [r.system_prompt for r in training] == ["kind", "kind", "", ""]
    greedy = source.validation(ROWS[:1])[0]
    assert (greedy.temperature, greedy.top_p, greedy.top_k, greedy.max_new_tokens) == (0.0, 1.0, 0, 5)
    assert source.training(ROWS[:2], 1, "step-1") == training
    assert training[0].seed != source.training(ROWS[:2], 2, "step-2")[0].seed


def test_targets_are_given_to_samples_and_never_to_the_probe() -> None:
    sides = [{"response": MediaArtifact("response", "text", text, "str")} for text in ("yes", "no")]
    row = replace(ROWS[0], targets=sides)
    source = drawing(CONFIG, algorithm("token_dpo"), None)
    assert [r.target["response"].data for r in source.training([row], 1, "step-1")] == ["yes", "no"]
    assert source.probe(row).target == {}


class Scored:
    """A rollout and a reward in one: prompts in `equal` get the same reward for all their samples."""

    def __init__(self, equal: str) -> None:
        self.equal, self.rounds = equal, []

    async def run(self, given: list[Any]) -> Any:
        if isinstance(given[0], TokenRequest):
            self.rounds.append([r.request_id for r in given])
            return [token_trajectory(i, 3, request=r) for i, r in enumerate(given)]
        total = [0.0 if t.request.prompt_id in self.equal else float(t.request.sample_index) for t in given]
        return ComposedReward(total=total, components={}, details=[{} for _ in given], failed=[], seconds={}, errors={})


def produce(equal: str, **options: Any) -> tuple[Producer, Scored, list[ScoredGroup]]:
    scored = Scored(equal)
    buffer = ReplayBuffer(registry.load("data_plane", "local")(NoOptions()), max_staleness=0)
    producer = Producer(
        config=CONFIG,
        sampler=PromptSampler(ROWS, 2, shuffle=False, seed=0),
        algorithm=algorithm("dapo", **options),
        requests=drawing(CONFIG, algorithm("dapo", **options), None),
        rollout=scored,  # type: ignore[arg-type]
        reward=scored,  # type: ignore[arg-type]
        buffer=buffer,
        clock=StageClock(),
        progress=SilentProgress(),
    )
    asyncio.run(producer.produce(1))
    return producer, scored, buffer.sample(buffer.available(0), 0)


def test_prompts_are_drawn_until_enough_groups_carry_a_signal() -> None:
    producer, scored, groups = produce("ab")
    assert producer.logs[1].refills == 1
    assert [g.trajectories[0].request.prompt_id for g in groups] == list("abcd")
    assert scored.rounds[1][0] == "step-1-refill-1/00000/000"
    batch = AdvantageStage(producer.algorithm, 2).run(groups, 0)
    assert batch is not None
    assert [t.request.prompt_id for t in batch.trajectories] == list("ccdd")
    assert produce("")[0].logs[1].refills == 0


def test_refilling_is_bounded_and_what_is_missing_is_done_without() -> None:
    producer, _, groups = produce("abcde", refill_rounds=2)
    assert (producer.logs[1].refills, len(groups)) == (2, 6)
    batch = AdvantageStage(producer.algorithm, 2).run(groups, 0)
    assert batch is not None
    assert [t.request.prompt_id for t in batch.trajectories] == list("ff")
    producer, _, groups = produce("abcdef", refill_rounds=0)
    assert len(groups) == 2
    assert AdvantageStage(producer.algorithm, 2).run(groups, 0) is None


def test_more_groups_than_a_batch_are_left_out() -> None:
    producer, _, groups = produce("a")
    assert [g.trajectories[0].request.prompt_id for g in groups] == list("abcd")
    batch = AdvantageStage(producer.algorithm, 2).run(groups, 0)
    assert batch is not None
    assert [t.request.prompt_id for t in batch.trajectories] == list("bbcc")


def test_other_algorithms_may_not_select_nothing() -> None:
    tied = ScoredGroup("g", 0, [token_trajectory(0, 2), token_trajectory(1, 2)], rewards=[1.0, 1.0])
    with pytest.raises(DataError, match="'token_dpo' selects none"):
        AdvantageStage(algorithm("token_dpo")).run([tied], 0)


def test_lengths_shape_advantages_but_not_the_selection() -> None:
    request = token_request(max_new_tokens=6)
    group = ScoredGroup(
        "g", 0, [token_trajectory(0, 2, request=request), token_trajectory(1, 6, request=request)], rewards=[0.0, 1.0]
    )
    plain = AdvantageStage(algorithm("dapo", normalize_by_std=False)).run([group], 0)
    shaped = AdvantageStage(algorithm("dapo", normalize_by_std=False, overlong_buffer=2, overlong_penalty=3.0)).run(
        [group], 0
    )
    assert plain is not None
    assert shaped is not None
    assert plain.advantages.tolist() == [-0.5, 0.5]
    assert shaped.advantages.tolist() == [1.0, -1.0]


def test_figures_leave_out_what_stands_after_a_response() -> None:
    trajectories = [token_trajectory(0, 1), token_trajectory(1, 3)]
    rollout = stack_log_probs(trajectories)
    assert rollout.shape == (2, 3)
    assert rollout.isnan().sum() == 2
    metrics = logprob_metrics(
        rollout + torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.4]]), rollout, row_timesteps(trajectories)
    )
    assert metrics["rollout_corr/logprob_abs_diff/mean"] == pytest.approx(0.1)
    assert metrics["rollout_corr/logprob_abs_diff/max"] == pytest.approx(0.4)
    assert metrics["rollout_corr/ratio_exact_one"] == 0.75
    assert not any("ts_" in name for name in metrics)

    class Actor:
        def log_probs(self, batch: TrainBatch) -> torch.Tensor:
            return stack_log_probs(batch.trajectories) + 0.25

    gaps = batch_shape_gaps(Actor(), TrainBatch(trajectories, torch.zeros(2)), [1, 2, 4])  # type: ignore[arg-type]
    assert gaps == {f"rollout_corr/batch_shape_gap/{name}": 0.25 for name in (1, 2, "max")}


def test_figures_on_responses() -> None:
    long = token_trajectory(1, 4, finish_reason="length")
    long.sampled_log_probs = long.log_probs - 0.5
    given = token_trajectory(2, 1, log_probs=torch.tensor([torch.nan]))
    metrics = response_metrics([token_trajectory(0, 2), long, given])
    assert metrics["response/length_mean"] == pytest.approx(7 / 3)
    assert (metrics["response/length_max"], metrics["response/length_min"]) == (4.0, 1.0)
    assert metrics["response/truncated"] == pytest.approx(1 / 3)
    assert metrics["rollout_corr/decode_abs_diff/max"] == 0.5
    assert metrics["rollout_corr/decode_abs_diff/mean"] == pytest.approx(2.0 / 6)
    from tests.support.requests import make_request

    assert response_metrics([make_trajectory(make_request())]) == {}


class Side:
    """Both engines: weights are a number; the response's log-probs are it, while its words stay the same."""

    def __init__(self) -> None:
        self.weights, self.stuck = 0.0, False

    def weights_checksum(self, _: Any = None) -> dict[str, str]:
        return {"w": str(self.weights)}

    def log_probs(self, batch: TrainBatch, policy: str = "current") -> torch.Tensor:
        return torch.full((1, 2), -self.weights)

    async def generate(self, requests: list[Any]) -> Any:
        from omni_portable.contracts.rollout import RolloutResult

        said = 0.0 if self.stuck else self.weights
        return RolloutResult([token_trajectory(0, 2, request=requests[0], log_probs=torch.full((2,), -said))])


def test_a_sync_shows_in_log_probs_though_the_words_are_the_same() -> None:
    side = Side()
    proof = SyncProof(side, side, token_request())  # type: ignore[arg-type]
    for weights in (0.0, 0.0, 0.5):
        side.weights = weights
        asyncio.run(proof.check())
    side.weights, side.stuck = 1.0, True
    asyncio.run(proof.check())  # what it says changed
    side.weights = 2.0
    with pytest.raises(WeightSyncError, match="did not change although the weights changed"):
        asyncio.run(proof.check())
