"""Properties of the diffusion losses that reference vectors do not show: gradients, rows, conventions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.algorithms.diffusion_losses.distill import flow_matching_mse
from omni_portable.algorithms.diffusion_losses.dpo import diffusion_dpo_loss
from omni_portable.algorithms.diffusion_losses.dppo import flow_dppo_loss
from omni_portable.algorithms.diffusion_losses.guard import grpo_guard_loss, shared_scale
from omni_portable.algorithms.diffusion_losses.nft import diffusion_nft_loss, nft_reward_probability
from omni_portable.algorithms.flow_grpo.loss import flow_grpo_loss
from omni_portable.contracts.errors import ConfigError

steady = settings(deadline=None, max_examples=30)


def tensors(count, names, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn((count, 3, 4), generator=g) for name in names}


def policy_rows(count, seed=0):
    g = torch.Generator().manual_seed(seed)
    means = tensors(count, ["mean", "old_mean"], seed)
    return {
        "log_prob": torch.randn(count, generator=g) * 0.1,
        "old_log_prob": torch.randn(count, generator=g) * 0.1,
        "advantage": torch.randn(count, generator=g),
        "mean": means["mean"] * 0.1,
        "old_mean": means["old_mean"] * 0.1,
        "std": torch.rand(count, generator=g) * 0.5 + 0.3,
    }


def nft_inputs(count, seed=0):
    g = torch.Generator().manual_seed(seed + 1)
    t = torch.rand(count, generator=g) * 0.9 + 0.05
    data = tensors(count, ["clean", "noise", "old_prediction"], seed)
    shaped = t.view(-1, 1, 1)
    noisy = (1 - shaped) * data["clean"] + shaped * data["noise"]
    return {"old_prediction": data["old_prediction"], "clean": data["clean"], "noisy": noisy, "t": t}


@steady
@given(st.integers(2, 9), st.integers(1, 8), st.sampled_from(["dppo", "guard", "nft"]))
def test_rows_are_independent_of_each_other(count, cut, name):
    cut = min(cut, count - 1)
    if name == "nft":
        inputs = {**nft_inputs(count), **tensors(count, ["prediction", "reference_prediction"], 5)}
        inputs["reward_probability"] = torch.linspace(0, 1, count)

        def loss(rows):
            return diffusion_nft_loss(**rows, mix_beta=0.3, advantage_clip=5.0, reference_kl_coefficient=0.1)
    elif name == "dppo":
        inputs = policy_rows(count)

        def loss(rows):
            return flow_dppo_loss(**rows, kl_mask_threshold=0.05)
    else:
        inputs = {**policy_rows(count), "minus_dt": torch.linspace(0.05, 0.2, count)}

        def loss(rows):
            return grpo_guard_loss(**rows, clip_ratio=0.1, advantage_clip=5.0)

    parts = [loss({k: v[s] for k, v in inputs.items()}) for s in (slice(0, cut), slice(cut, None))]
    torch.testing.assert_close(torch.cat([p.loss for p in parts]), loss(inputs).loss)


@pytest.mark.parametrize(("advantage", "shift", "kept"), [(1.0, 0.1, False), (1.0, -0.1, True), (-1.0, -0.1, False)])
def test_dppo_drops_only_rows_that_would_move_further_away(advantage, shift, kept):
    rows = policy_rows(1)
    rows["log_prob"] = (rows["old_log_prob"] + shift).requires_grad_()
    rows["advantage"] = torch.tensor([advantage])
    far = flow_dppo_loss(**rows, kl_mask_threshold=1e-6)
    assert (far.loss.item() != 0.0) is kept
    assert far.metrics["actor/kl_mask_fraction"].item() == 1.0
    near = flow_dppo_loss(**rows, kl_mask_threshold=1e6)
    assert near.loss.item() == pytest.approx(-advantage * torch.tensor(shift).exp().item(), rel=1e-5)


def test_guard_of_an_unmoved_policy_is_flow_grpo_per_step_size():
    rows = policy_rows(5)
    rows["log_prob"] = rows["old_log_prob"].clone().requires_grad_()
    rows["old_mean"] = rows["mean"]
    minus_dt = torch.linspace(0.05, 0.2, 5)
    guard = grpo_guard_loss(**rows, minus_dt=minus_dt, clip_ratio=0.1, advantage_clip=5.0)
    plain = flow_grpo_loss(
        rows["log_prob"], rows["old_log_prob"], rows["advantage"], clip_ratio=0.1, advantage_clip=5.0
    )
    torch.testing.assert_close(guard.loss, plain.loss / minus_dt)


def test_the_shared_scale_of_equal_rows_is_the_rows_own():
    std, minus_dt = shared_scale(torch.full((4,), 0.8), torch.full((4,), 0.3))
    torch.testing.assert_close(std, torch.full((4,), 0.24))
    torch.testing.assert_close(minus_dt, torch.full((4,), 0.09))


def test_dpo_is_symmetric_and_prefers_the_better_denoised():
    data = tensors(4, ["prediction", "noise", "latents"])
    reference = data["prediction"].clone()
    even = diffusion_dpo_loss(data["prediction"], reference, data["noise"], data["latents"], beta=100.0)
    torch.testing.assert_close(even.loss, torch.full((2,), 2.0).log())
    better = data["prediction"].clone()
    better[0::2] = data["noise"][0::2] - data["latents"][0::2]
    result = diffusion_dpo_loss(better, reference, data["noise"], data["latents"], beta=100.0)
    assert (result.loss < even.loss).all()
    assert result.metrics["actor/implicit_acc"].tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="pairs"):
        diffusion_dpo_loss(*(t[:3] for t in (better, reference, data["noise"], data["latents"])), beta=1.0)


@pytest.mark.parametrize(("probability", "lowers"), [(1.0, True), (0.0, False)])
def test_nft_moves_towards_good_samples_and_away_from_bad_ones(probability, lowers):
    inputs = nft_inputs(3)
    v = inputs["old_prediction"].clone().requires_grad_()
    loss = diffusion_nft_loss(
        v, **inputs, reward_probability=torch.full((3,), probability), mix_beta=0.5, advantage_clip=5.0
    ).loss
    step = torch.autograd.grad(loss.sum(), v)[0]
    t = inputs["t"].view(-1, 1, 1)

    def error(velocity):
        return ((inputs["noisy"] - t * velocity - inputs["clean"]) ** 2).mean((1, 2))

    moved = error(v.detach() - 1e-3 * step)
    assert ((moved < error(v.detach())) == lowers).all()


def test_nft_needs_reference_predictions_for_its_kl():
    inputs = nft_inputs(2)
    common = {"reward_probability": torch.full((2,), 0.5), "mix_beta": 0.5, "advantage_clip": 5.0}
    v = inputs["old_prediction"]
    with pytest.raises(ValueError, match="reference"):
        diffusion_nft_loss(v, **inputs, **common, reference_kl_coefficient=0.1)


@steady
@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=9), st.floats(0.5, 6.0))
def test_reward_probabilities_are_monotonic_and_bounded(values, clip):
    advantages = torch.tensor(sorted(values))
    for mode in ("continuous", "positive_only", "negative_only", "one_only", "binary"):
        p = nft_reward_probability(advantages, advantage_clip=clip, mode=mode)
        assert ((p >= 0) & (p <= 1)).all()
        assert (p.diff() >= 0).all()
    with pytest.raises(ConfigError, match="advantage mode"):
        nft_reward_probability(advantages, advantage_clip=clip, mode="soft")


def test_distillation_trains_the_student_only():
    data = tensors(2, ["student", "teacher"])
    student, teacher = data["student"].requires_grad_(), data["teacher"].requires_grad_()
    rows = flow_matching_mse(student, teacher)
    torch.testing.assert_close(rows, ((student - teacher) ** 2).mean((1, 2)))
    rows.sum().backward()
    assert teacher.grad is None
    assert student.grad.abs().sum() > 0
