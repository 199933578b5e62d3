"""Token losses: padding never matters, aggregation names mean what verl's do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.algorithms.token_losses.advantages import grpo_token_advantages
from omni_portable.algorithms.token_losses.aggregation import AGGREGATIONS, aggregate
from omni_portable.algorithms.token_losses.kl_penalty import kl_penalty
from omni_portable.algorithms.token_losses.policy_gradient import gspo_loss, ppo_clip_loss
from omni_portable.contracts.errors import ConfigError

steady = settings(deadline=None, max_examples=30)
LOSSES = {"ppo": ppo_clip_loss, "gspo": gspo_loss}


def batch(lengths, width, seed=0):
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand((len(lengths), width), generator=g) * 2
    new = old + 0.2 * torch.randn(old.shape, generator=g)
    mask = (torch.arange(width) < torch.tensor(lengths).view(-1, 1)).float()
    advantage = torch.randn((len(lengths), 1), generator=g).expand_as(old) * mask
    return new, old, advantage, mask


@steady
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from(sorted(LOSSES)),
    st.sampled_from(AGGREGATIONS),
    st.sampled_from([0.0, 7.0, float("-inf")]),
)
def test_padding_changes_neither_loss_nor_gradient(lengths, name, mode, garbage):
    new, old, advantage, mask = batch(lengths, 5)
    new = torch.where(mask > 0, new, torch.tensor(garbage)).requires_grad_()
    keys = {"clip_low": 0.2, "clip_high": 0.28, "aggregation": mode}
    result = LOSSES[name](new, old, advantage, mask, **keys)
    gradient = torch.autograd.grad(result.loss, new)[0] if garbage == 7.0 else torch.zeros_like(new)
    clean = torch.where(mask > 0, new.detach(), old)
    torch.testing.assert_close(LOSSES[name](clean, old, advantage, mask, **keys).loss, result.loss.detach())
    assert (gradient * (1 - mask)).abs().max() == 0


def test_aggregations():
    losses = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    expected = {
        "token-mean": 2.5,
        "seq-mean-token-sum": 5.0,
        "seq-mean-token-mean": 3.0,
        "seq-mean-token-sum-norm": 10 / 3,
    }
    for mode, value in expected.items():
        assert aggregate(losses, mask, mode).item() == pytest.approx(value)
    with pytest.raises(ConfigError, match="aggregation"):
        aggregate(losses, mask, "mean")


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "token-mean"])
def test_sequences_without_tokens_leave_the_mean(mode):
    losses, mask = torch.rand(3, 4), torch.ones(3, 4)
    padded, empty = torch.cat([losses, torch.ones(2, 4)]), torch.cat([mask, torch.zeros(2, 4)])
    torch.testing.assert_close(aggregate(padded, empty, mode), aggregate(losses, mask, mode))
    assert aggregate(losses, torch.zeros(3, 4), mode).item() == 0.0


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    new, old, _, mask = batch([4], 4)
    new = old + 5.0  # the ratio is e^5
    keys = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
    result = ppo_clip_loss(new, old, -torch.ones_like(old), mask, **keys)
    assert result.loss.item() == pytest.approx(3.0)
    assert result.metrics["actor/pg_clipfrac_lower"].item() == 1.0


def test_gspo_has_one_ratio_per_sequence_and_gradients_of_every_token():
    new, old, advantage, mask = batch([3], 3)
    advantage = torch.ones_like(advantage)
    new = new.requires_grad_()
    keys = {"clip_low": 10.0, "clip_high": 10.0}
    result = gspo_loss(new, old, advantage, mask, **keys)
    ratio = torch.exp((new - old).mean()).item()
    assert result.loss.item() == pytest.approx(-ratio, rel=1e-5)
    gradient = torch.autograd.grad(result.loss, new)[0]
    torch.testing.assert_close(gradient, torch.full_like(gradient, -ratio / 3))


def test_lone_sequences_have_no_advantage_unless_published_ones_are_asked_for():
    rewards = torch.tensor([[0.0, 2.0], [1.0, 0.0], [3.0, 0.0]])
    mask = torch.ones(3, 2)
    ours = grpo_token_advantages(rewards, mask, ["a", "b", "b"])
    assert ours[0].tolist() == [0.0, 0.0]
    published = grpo_token_advantages(rewards, mask, ["a", "b", "b"], keep_lone_rewards=True)
    torch.testing.assert_close(published[0], torch.tensor([2.0, 2.0]))
    assert torch.equal(published[1:], ours[1:])
    torch.testing.assert_close(ours[1:, 0], torch.tensor([-1.0, 1.0]) / torch.tensor([1.0, 3.0]).std())


def test_kl_estimators_agree_with_the_true_divergence():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn((2, 50), generator=g)
    logits[1] = logits[0] + 0.1 * torch.randn(50, generator=g)
    p, q = torch.log_softmax(logits, -1)
    true = (p.exp() * (p - q)).sum().item()
    for estimator, tolerance in (("kl", 1e-6), ("low_var_kl", 1e-6), ("mse", 2e-3)):
        expectation = (p.exp() * kl_penalty(p, q, estimator)).sum().item()
        assert expectation == pytest.approx(true, abs=tolerance)
    assert (kl_penalty(p, q, "low_var_kl") >= -1e-7).all()
    assert torch.equal(kl_penalty(p, q, "abs"), (p - q).abs())
    assert kl_penalty(torch.tensor([-50.0]), torch.tensor([0.0]), "low_var_kl").item() == 10.0
    with pytest.raises(ConfigError, match="estimator"):
        kl_penalty(p, q, "k7")
