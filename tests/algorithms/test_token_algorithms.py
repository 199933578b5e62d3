"""Token algorithms: what they select, how they weigh rewards and rows, and that their losses are the published ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.algorithms.token_losses.aggregation import AGGREGATIONS, aggregate, row_weights, total_weight
from omni_portable.algorithms.token_losses.kl_penalty import kl_penalty
from omni_portable.algorithms.token_losses.policy_gradient import gspo_loss, ppo_clip_loss
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.tokens import TokenAlgorithm, TokenReplay, TokenRows

NAMES = ("grpo", "dr_grpo", "dapo", "gspo", "ppo", "token_dpo", "token_opd")
CLIPPED = ("grpo", "dr_grpo", "dapo", "gspo", "ppo")


def make(name: str, **options: Any) -> Any:
    return registry.load("algorithm", name)(registry.spec("algorithm", name).options(**options))


def batch(lengths: list[int], seed: int = 0) -> tuple[TokenReplay, torch.Tensor, torch.Tensor]:
    """Replay, old log-probs and (B,) advantages."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    old = -torch.rand(shape, generator=g) * 2
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).float()
    log_prob = (old + 0.3 * torch.randn(shape, generator=g)).requires_grad_()
    reference = old + 0.1 * torch.randn(shape, generator=g)
    return TokenReplay(log_prob, mask, reference_log_prob=reference), old * mask, torch.randn(len(lengths), generator=g)


def total_loss(
    algorithm: Any, replay: TokenReplay, old: torch.Tensor, advantage: torch.Tensor, budget: int = 9
) -> torch.Tensor:
    """As the engine forms it from one micro-batch."""
    count = len(advantage)
    ones = torch.ones(count)
    weight = algorithm.row_weights(replay.mask, ones, torch.full((count,), budget))
    rows = TokenRows(old, advantage, weight, sample_ids=[str(i) for i in range(count)])
    result = algorithm.loss(replay, rows)
    assert result.loss.shape == weight.shape
    assert all(values.shape == weight.shape for values in result.metrics.values())
    return (result.loss * weight).sum() / algorithm.total_weight(replay.mask.sum(1), ones)


@pytest.mark.parametrize("name", NAMES)
def test_they_keep_the_protocol_and_load_their_options_without_torch(name: str) -> None:
    assert isinstance(make(name), TokenAlgorithm)
    assert registry.spec("algorithm", name).capabilities["kind"] == "token"


@pytest.mark.parametrize("aggregation", [a for a in AGGREGATIONS if not a.endswith("norm")])
@pytest.mark.parametrize("name", ["grpo", "dapo", "ppo"])
def test_the_loss_is_the_published_one(name: str, aggregation: str) -> None:
    algorithm = make(name, aggregation=aggregation)
    replay, old, advantage = batch([4, 1, 3])
    wanted = ppo_clip_loss(
        replay.log_prob, old, advantage[:, None].expand_as(old), replay.mask,
        clip_low=algorithm.options.clip_low, clip_high=algorithm.options.clip_high, aggregation=aggregation,
    )  # fmt: skip
    torch.testing.assert_close(total_loss(algorithm, replay, old, advantage), wanted.loss)


def test_gspo_is_the_published_one() -> None:
    algorithm = make("gspo", clip_low=0.1, clip_high=0.2)
    replay, old, advantage = batch([4, 1, 3])
    wanted = gspo_loss(
        replay.log_prob, old, advantage[:, None].expand_as(old), replay.mask, clip_low=0.1, clip_high=0.2
    )
    found = total_loss(algorithm, replay, old, advantage)
    torch.testing.assert_close(found, wanted.loss)
    ours, theirs = (torch.autograd.grad(loss, replay.log_prob, retain_graph=True)[0] for loss in (found, wanted.loss))
    torch.testing.assert_close(ours, theirs)


def test_dr_grpo_divides_by_the_budget_and_the_number_of_sequences() -> None:
    replay, old, advantage = batch([4, 1, 3])
    wanted = ppo_clip_loss(
        replay.log_prob, old, advantage[:, None].expand_as(old), replay.mask,
        clip_low=0.2, clip_high=0.2, aggregation="seq-mean-token-sum",
    )  # fmt: skip
    torch.testing.assert_close(total_loss(make("dr_grpo"), replay, old, advantage, budget=9), wanted.loss / 9)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.sampled_from(AGGREGATIONS), st.integers(1, 5), st.data())
def test_row_weights_make_parts_add_up_to_the_whole(lengths: list[int], mode: Any, cut: int, data: Any) -> None:
    g = torch.Generator().manual_seed(len(lengths))
    width = max(lengths)
    losses = torch.randn(len(lengths), width, generator=g, dtype=torch.float64)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).double()
    weights = torch.tensor(
        data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(lengths), max_size=len(lengths)))
    )
    weights[0] = 1.0
    norm = torch.full((len(lengths),), 7)
    total = total_weight(torch.tensor(lengths), weights, mode)
    parts = [slice(first, first + cut) for first in range(0, len(lengths), cut)]
    found = sum((losses[p] * row_weights(mask[p], weights[p], mode, norm[p])).sum() for p in parts) / total
    kept = weights > 0
    wanted = aggregate(losses[kept], mask[kept], mode)
    if mode == "seq-mean-token-sum-norm":
        wanted = wanted * width / 7 / int(kept.sum())
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize(("short", "long"), [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl"), ("abs", "abs")])
def test_kl_and_entropy_are_added(name: str, short: Any, long: Any) -> None:
    replay, old, advantage = batch([4, 2])
    replay.entropy = torch.rand(2, 4)
    plain = total_loss(make(name), replay, old, advantage)
    algorithm = make(name, kl_coef=0.5, kl_estimator=short, entropy_coef=0.25)
    assert algorithm.requires.reference_policy
    assert algorithm.needs_entropy
    more = 0.5 * kl_penalty(replay.log_prob, replay.reference_log_prob, long) - 0.25 * replay.entropy
    weight = algorithm.row_weights(replay.mask, torch.ones(2), torch.full((2,), 9))
    extra = (more * weight).sum() / algorithm.total_weight(replay.mask.sum(1), torch.ones(2))
    torch.testing.assert_close(total_loss(algorithm, replay, old, advantage), plain + extra)


@pytest.mark.parametrize("name", CLIPPED)
def test_importance_weights_multiply_the_policy_loss(name: str) -> None:
    algorithm = make(name)
    replay, old, advantage = batch([3, 3])
    ones = torch.ones(2, 3)
    rows = TokenRows(old, advantage, ones, importance_weight=2.0 * ones)
    twice, once = algorithm.loss(replay, rows).loss, algorithm.loss(replay, TokenRows(old, advantage, ones)).loss
    torch.testing.assert_close(twice, 2.0 * once)


@pytest.mark.parametrize("name", CLIPPED)
def test_before_any_update_ratios_are_one_and_nothing_is_clipped(name: str) -> None:
    replay, _, advantage = batch([3, 2])
    rows = TokenRows(replay.log_prob.detach().clone(), advantage, torch.ones(2, 3))
    metrics = make(name).loss(replay, rows).metrics
    assert torch.equal(metrics["actor/ratio"], torch.ones(2, 3))
    assert not metrics["actor/pg_clipfrac"].any()


def test_dapo_clips_higher_above_and_keeps_groups_with_a_signal() -> None:
    algorithm = make("dapo")
    assert (algorithm.options.clip_low, algorithm.options.clip_high, algorithm.options.aggregation) == (
        0.2,
        0.28,
        "token-mean",
    )
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    groups = ["a", "a", "b", "b", "c", "c"]
    assert list(algorithm.select(rewards, groups).indices) == [2, 3]
    assert not list(algorithm.select(torch.ones(2), ["a", "a"]).indices)
    assert (algorithm.dynamic_sampling, algorithm.refill_rounds) == (True, 2)


def test_dapo_punishes_length_within_the_buffer() -> None:
    algorithm = make("dapo", overlong_buffer=4, overlong_penalty=2.0)
    lengths, budgets = torch.tensor([6, 7, 8, 10]), torch.full((4,), 10)
    shaped = algorithm.shape_rewards(torch.ones(4), lengths, budgets)
    torch.testing.assert_close(shaped, torch.tensor([1.0, 0.5, 0.0, -1.0]))
    assert torch.equal(make("dapo").shape_rewards(torch.ones(4), lengths, budgets), torch.ones(4))
    with pytest.raises(ConfigError, match="leaves nothing of rollout.max_new_tokens=4"):
        algorithm.shape_rewards(torch.ones(4), lengths, torch.full((4,), 4))


def test_advantages() -> None:
    rewards, groups = torch.tensor([0.0, 1.0, 3.0, 5.0]), ["a", "a", "b", "b"]
    half = 1 / (2**0.5)
    torch.testing.assert_close(
        make("grpo").advantages(rewards, groups), torch.tensor([-half, half, -half, half]), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(make("dr_grpo").advantages(rewards, groups), torch.tensor([-0.5, 0.5, -1.0, 1.0]))
    whitened = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    torch.testing.assert_close(make("ppo").advantages(rewards, groups), whitened)
    torch.testing.assert_close(
        make("ppo", baseline="group").advantages(rewards, groups), make("grpo").advantages(rewards, groups)
    )
    assert torch.equal(make("ppo", baseline="none").advantages(rewards, groups), rewards)


def pair(gain: float) -> tuple[TokenReplay, TokenRows]:
    reference = torch.full((2, 3), -1.0)
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    log_prob = torch.stack([reference[0] + gain, reference[1] - gain]).requires_grad_()
    replay = TokenReplay(log_prob, mask, reference_log_prob=reference)
    return replay, TokenRows(torch.full((2, 3), torch.nan), torch.zeros(2), torch.ones(2))


def test_dpo_is_the_published_loss_on_both_rows() -> None:
    replay, rows = pair(0.2)
    margin = torch.tensor(0.2 * 3 + 0.2 * 2)
    result = make("token_dpo", beta=0.5, label_smoothing=0.1).loss(replay, rows)
    log_sigmoid = torch.nn.functional.logsigmoid
    wanted = -0.9 * log_sigmoid(0.5 * margin) - 0.1 * log_sigmoid(-0.5 * margin)
    torch.testing.assert_close(result.loss, wanted.expand(2))
    torch.testing.assert_close(result.metrics["actor/dpo_margin"], (0.5 * margin).expand(2))
    assert result.metrics["actor/dpo_accuracy"].tolist() == [1.0, 1.0]
    ipo = make("token_dpo", beta=0.5, loss="ipo", length_normalized=True).loss(replay, rows)
    torch.testing.assert_close(ipo.loss, torch.full((2,), (0.4 - 1.0) ** 2))


def test_dpo_pairs_are_best_and_worst() -> None:
    algorithm = make("token_dpo")
    rewards, groups = torch.tensor([0.0, 2.0, 1.0, 3.0, 3.0]), ["a", "a", "a", "b", "b"]
    selection = algorithm.select(rewards, groups)
    assert (list(selection.indices), selection.unit) == ([1, 0], 2)
    assert list(make("token_dpo", keep_ties=True).select(rewards, groups).indices) == [1, 0, 3, 4]


def test_distillation_is_the_reverse_kl_or_its_policy_gradient() -> None:
    g = torch.Generator().manual_seed(0)
    logits, teacher = torch.randn(2, 3, 5, generator=g, requires_grad=True), torch.randn(2, 3, 5, generator=g)
    ids = torch.randint(0, 5, (2, 3, 1), generator=g)
    chosen, other = (x.log_softmax(-1).gather(-1, ids)[..., 0] for x in (logits, teacher))
    replay = TokenReplay(chosen, torch.ones(2, 3), logits=logits, teacher_logits=teacher, teacher_log_prob=other)
    rows = TokenRows(chosen.detach(), torch.zeros(2), torch.ones(2, 3))
    algorithm = make("token_opd", distill_coef=0.5)
    assert algorithm.requires.teacher
    assert algorithm.needs_logits
    student = logits.softmax(-1)
    kl = (student * (student.log() - teacher.log_softmax(-1))).sum(-1)
    torch.testing.assert_close(algorithm.loss(replay, rows).loss, 0.5 * kl)
    sampled = make("token_opd", objective="sampled")
    assert not sampled.needs_logits
    torch.testing.assert_close(sampled.loss(replay, rows).loss, chosen.detach() - other)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grpo", {"clip_low": 1.0}, "clip_low"),
        ("grpo", {"dual_clip": 1.0}, "dual_clip"),
        ("gspo", {"kl_coef": -1.0}, "kl_coef"),
        ("dapo", {"refill_rounds": -1}, "refill_rounds"),
        ("dapo", {"overlong_buffer": -1}, "overlong_buffer"),
        ("ppo", {"advantage_epsilon": 0.0}, "advantage_epsilon"),
        ("token_dpo", {"beta": 0.0}, "beta"),
        ("token_dpo", {"label_smoothing": 0.5}, "label_smoothing"),
        ("token_opd", {"distill_coef": 0.0}, "distill_coef"),
        ("token_opd", {"clip": 0.0}, "clip"),
    ],
)
def test_options_that_cannot_work_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **options)
