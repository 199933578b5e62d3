"""Training on responses: exact denominators, ratios of exactly 1, and the policies beside the current one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from omni_backends.rollout.native_tokens.engine import NativeTokenEngine
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.config.schema import TeacherConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import ConsistencyError, DataError, NonFiniteError
from omni_portable.contracts.tokens import TokenTrajectory
from tests.support.engines import make_setup
from tests.support.requests import make_request, make_trajectory
from tests.support.token_models import FAMILIES, folder, prompts, token_request

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def algorithm(name: str, **options: Any) -> Any:
    return registry.load("algorithm", name)(registry.spec("algorithm", name).options(**options))


def setup_for(name: str, *, lora_rank: int = 4, requires: Any = None, **rollout: Any) -> Any:
    setup = make_setup(name.partition("/")[0], folder(name), lora_rank=lora_rank, **({"max_num_seqs": 8} | rollout))
    return setup if requires is None else dataclasses.replace(setup, requires=requires)


def draw(setup: Any, name: str, count: int = 8, **changes: Any) -> list[TokenTrajectory]:
    """Responses of different lengths to prompts with all the media of the family."""
    engine = NativeTokenEngine(setup)
    known = prompts(name)
    requests = [
        token_request(
            i,
            prompt=known[i // 2 % len(known)][0],
            media=known[i // 2 % len(known)][1],
            max_new_tokens=2 + i % 5,
            **changes,
        )
        for i in range(count)
    ]
    return list(asyncio.run(engine.generate(requests)).trajectories)


def batch_of(trajectories: Sequence[TokenTrajectory], **changes: Any) -> TrainBatch:
    advantages = torch.randn(len(trajectories), generator=torch.Generator().manual_seed(5))
    return TrainBatch(list(trajectories), advantages, **changes)


def gradients(setup: Any, batch: TrainBatch, rule: Any, micro: int) -> tuple[list[torch.Tensor], dict[str, float]]:
    """Of one step, which is not taken; and its metrics."""
    engine = SingleTrainEngine(setup)
    engine._micro_size = micro
    for parameter in engine._module.parameters():  # B = 0 would leave A without a gradient
        if parameter.requires_grad:
            parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    found: list[torch.Tensor] = []
    engine._optimizer.step = lambda norm: found.extend(m.grad.clone() for m in engine._optimizer.masters.values())  # type: ignore[method-assign]
    result = engine.train_step(batch, rule)
    return found, result.metrics


@pytest.mark.parametrize("family", FAMILIES)
def test_before_any_update_ratios_are_exactly_one(family: str) -> None:
    for rank in (0, 4):
        setup = setup_for(family, lora_rank=rank)
        trajectories = draw(setup, family)
        actor = SingleTrainEngine(setup)
        batch = batch_of(trajectories)
        scored = actor.log_probs(batch)
        for row, trajectory in zip(scored, trajectories, strict=True):
            assert torch.equal(row[: trajectory.length], trajectory.log_probs)
            assert row[trajectory.length :].isnan().all()
        result = actor.train_step(batch, algorithm("grpo"))
        assert (result.metrics["actor/ratio_mean"], result.metrics["actor/ratio_max_dev"]) == (1.0, 0.0)
        assert torch.equal(result.log_probs.nan_to_num(), scored.nan_to_num())
        assert result.metrics["actor/grad_norm"] > 0
        assert not torch.equal(actor.log_probs(batch).nan_to_num(), scored.nan_to_num())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_gradients_do_not_depend_on_the_micro_batches(name: str, aggregation: Any) -> None:
    setup = setup_for("qwen3")
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    batch = batch_of(draw(setup, "qwen3"), weights=weights)
    rule = algorithm(name, aggregation=aggregation, clip_low=0.2, clip_high=0.2, entropy_coef=0.1)
    whole, metrics = gradients(setup, batch, rule, 8)
    assert sum(float(g.abs().sum()) for g in whole) > 0
    for micro in (1, 3):
        parts, same = gradients(setup, batch, rule, micro)
        for left, right in zip(whole, parts, strict=True):
            torch.testing.assert_close(left, right, atol=2e-7, rtol=1e-4)
        assert same == pytest.approx(metrics, abs=2e-6, rel=1e-4)


def test_the_logged_loss_is_the_objective() -> None:
    setup = setup_for("qwen3")
    trajectories = draw(setup, "qwen3")
    batch = batch_of(trajectories)
    for aggregation, scale in (
        ("token-mean", [1.0] * 8),
        ("seq-mean-token-sum", [float(t.length) for t in trajectories]),
        ("seq-mean-token-mean", [1.0] * 8),
        ("seq-mean-token-sum-norm", [t.length / t.request.max_new_tokens for t in trajectories]),
    ):
        metrics = SingleTrainEngine(setup).train_step(batch, algorithm("grpo", aggregation=aggregation)).metrics
        if aggregation == "token-mean":
            counts = torch.tensor([float(t.length) for t in trajectories])
            wanted = -(batch.advantages * counts).sum() / counts.sum()
        else:
            wanted = -(batch.advantages * torch.tensor(scale)).mean()
        assert metrics["actor/loss"] == pytest.approx(float(wanted), rel=1e-5)


def test_rows_of_weight_zero_cannot_matter() -> None:
    setup = setup_for("qwen3")
    trajectories = draw(setup, "qwen3", 4)
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0])
    clean, metrics = gradients(setup, batch_of(trajectories, weights=weights), algorithm("gspo"), 4)
    trajectories[1] = dataclasses.replace(trajectories[1], log_probs=torch.full((trajectories[1].length,), torch.inf))
    dirty, same = gradients(setup, batch_of(trajectories, weights=weights), algorithm("gspo"), 4)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))
    assert metrics == same


def test_decoupled_log_probs_and_importance_weights_are_cut_to_the_responses() -> None:
    setup = setup_for("qwen3")
    trajectories = draw(setup, "qwen3", 4)
    widest = max(t.length for t in trajectories)
    old = torch.nn.utils.rnn.pad_sequence([t.log_probs for t in trajectories], True, torch.nan)
    rule = algorithm("grpo")
    plain, _ = gradients(setup, batch_of(trajectories), rule, 2)
    given, _ = gradients(setup, batch_of(trajectories, old_log_probs=old), rule, 2)
    assert all(torch.equal(a, b) for a, b in zip(plain, given, strict=True))
    doubled, _ = gradients(setup, batch_of(trajectories, importance_weights=torch.full((4, widest), 2.0)), rule, 2)
    for one, two in zip(plain, doubled, strict=True):
        torch.testing.assert_close(2.0 * one, two)
    with pytest.raises(ConsistencyError, match="columns for responses"):
        gradients(setup, batch_of(trajectories, old_log_probs=old[:, :1]), rule, 2)


def test_reference_and_average_policies() -> None:
    rule = algorithm("grpo", kl_coef=0.1)
    setup = setup_for("qwen3", requires=rule.requires)
    actor = SingleTrainEngine(setup)
    batch = batch_of(draw(setup, "qwen3"))
    assert actor.train_step(batch, rule).metrics["actor/kl_loss"] == 0.0
    assert actor.train_step(batch, rule).metrics["actor/kl_loss"] > 0.0
    assert not torch.equal(actor.log_probs(batch).nan_to_num(), actor.log_probs(batch, "reference").nan_to_num())


def test_pairs_stay_together_and_learn() -> None:
    rule = algorithm("token_dpo", beta=1.0)
    setup = setup_for("qwen3", requires=rule.requires, max_num_seqs=3)
    setup.config.actor.lr = 1e-2
    trajectories = draw(setup, "qwen3", 8)
    given = [dataclasses.replace(t, log_probs=torch.full_like(t.log_probs, torch.nan)) for t in trajectories]
    actor = SingleTrainEngine(setup)
    batch = TrainBatch(given, torch.zeros(8), unit=2)
    first = actor.train_step(batch, rule).metrics
    assert first["actor/loss"] == pytest.approx(0.6931, abs=1e-3)
    for _ in range(5):
        last = actor.train_step(batch, rule).metrics
    assert last["actor/loss"] < first["actor/loss"]
    assert last["actor/dpo_accuracy"] > 0.5
    with pytest.raises(DataError, match="whole number of units"):
        actor.train_step(TrainBatch(given[:3], torch.zeros(3), unit=2), rule)


@pytest.mark.parametrize("objective", ["full", "sampled"])
def test_teachers_are_followed(objective: Any) -> None:
    rule = algorithm("token_opd", objective=objective)
    setup = setup_for("qwen_vl", requires=rule.requires)
    setup.config.model.teachers = {
        "a": TeacherConfig(path=str(folder("qwen_vl"))),
        "b": TeacherConfig(path=str(folder("qwen_vl/answers"))),
    }
    setup.config.model.teacher_field = "who"
    actor = SingleTrainEngine(setup)
    same, other = (draw(setup, "qwen_vl", metadata={"who": who}) for who in "ab")
    assert actor.train_step(batch_of(same), rule).metrics["actor/distill_k1"] == pytest.approx(0.0, abs=1e-6)
    mixed = [*same[:4], *other[4:]]
    first = actor.train_step(batch_of(mixed), rule).metrics
    assert first["actor/distill_k1"] > 0.1
    with pytest.raises(DataError, match="names the teacher 'c'"):
        actor.train_step(batch_of(draw(setup, "qwen_vl", metadata={"who": "c"})), rule)


def test_what_does_not_belong_together_is_refused() -> None:
    setup = setup_for("qwen3")
    actor = SingleTrainEngine(setup)
    hot, cold = draw(setup, "qwen3", 2), draw(setup, "qwen3", 2, temperature=0.5)
    with pytest.raises(ConsistencyError, match="differ in temperature"):
        actor.log_probs(batch_of([hot[0], cold[1]]))
    with pytest.raises(ConsistencyError, match="denoised samples"):
        actor.log_probs(TrainBatch([make_trajectory(make_request())], torch.zeros(1)))
    bad = batch_of(hot)
    bad.advantages[0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"\br0\b"):
        actor.train_step(bad, algorithm("grpo"))
