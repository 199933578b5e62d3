"""Algorithms that train on clean samples with fresh noise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.algorithms.options import NoiseLevelOptions
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Algorithm, Denoising, LossRows, Rows
from omni_portable.contracts.errors import CapabilityError, ConfigError, DataError
from omni_portable.samplers.reduce import row_mean
from omni_portable.samplers.schedule import flow_match_schedule

SCHEDULE = flow_match_schedule(8, shift=3.0)
NAMES = ("diffusion_nft", "omni_nft", "diffusion_dpo", "dgpo", "sft")
SHAPE = (2, 3, 4)
steady = settings(deadline=None, max_examples=25)


def build(name: str, **options: object) -> Algorithm:
    spec = registry.spec("algorithm", name)
    return spec.load()(spec.options(**options))


def make(count: int, seed: int = 0, streams: dict | None = None) -> tuple[Denoising, Rows]:
    g = torch.Generator().manual_seed(seed)
    velocity, clean, noise, old, reference = (torch.randn((count, *SHAPE), generator=g) for _ in range(5))
    sigma = torch.rand(count, generator=g) * 0.8 + 0.1
    s = sigma.reshape(-1, 1, 1, 1)
    rows = Denoising(
        velocity=velocity.requires_grad_(),
        clean=clean,
        noise=noise,
        noisy=(1 - s) * clean + s * noise,
        sigma=sigma,
        old_velocity=old,
        reference_velocity=reference,
        streams=streams or {"latents": (0, 24)},
    )
    weight = torch.ones(count)
    advantage = torch.randn(count, generator=g)
    return rows, Rows(weight * torch.nan, advantage, weight, "ode", unit=torch.arange(count) // 2)


def gradient(result: LossRows, rows: Denoising) -> torch.Tensor:
    return torch.autograd.grad(result.loss.mean(), rows.velocity)[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_one_loss_and_a_gradient_of_its_own(name):
    algorithm = build(name)
    assert isinstance(algorithm, Algorithm)
    assert (algorithm.name, algorithm.row_kind) == (name, "noised")
    rows, beside = make(6)
    rows.old_velocity = rows.reference_velocity = rows.velocity.detach() + 1e-4  # near, so that nothing is clipped
    result = algorithm.loss(rows, beside)
    assert all(values.shape == (6,) for values in (result.loss, *result.metrics.values()))
    assert not any(values.requires_grad for values in result.metrics.values())
    assert gradient(result, rows).flatten(1).abs().amax(1).min() > 0


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_deterministic_and_record_nothing(name):
    plan = build(name).sampling_plan(SCHEDULE, 3, 1)
    assert (plan.kind, plan.stochastic_steps, plan.record_transitions) == ("ode", (), False)


@steady
@given(seed=st.integers(0, 10), fraction=st.floats(0.05, 1.0))
def test_schedule_levels_are_a_permutation_per_key(seed, fraction):
    algorithm = build("diffusion_nft", timestep_fraction=fraction)
    levels = algorithm.noise_levels(SCHEDULE, ["a", "b", "a"], seed)
    assert levels.shape == (3, max(1, int(8 * fraction)))
    assert torch.equal(levels[0], levels[2])
    for row in levels:
        assert set(row.tolist()) <= set(torch.tensor(SCHEDULE.sigmas[:-1]).tolist())
        assert len(set(row.tolist())) == levels.shape[1]


def test_levels_change_with_the_key_and_the_seed():
    draws = [build("diffusion_nft").noise_levels(SCHEDULE, [key], seed) for key, seed in (("a", 1), ("b", 1), ("a", 2))]
    assert not any(torch.equal(draws[0], other) for other in draws[1:])


def test_logit_normal_levels_have_the_median_of_their_shift():
    keys = [str(i) for i in range(2000)]
    plain = build("sft", timesteps_per_sample=2).noise_levels(SCHEDULE, keys, 0)
    assert plain.shape == (2000, 2)
    assert plain.median().item() == pytest.approx(0.5, abs=0.02)
    shifted = build("sft", sigma_shift=3.0).noise_levels(SCHEDULE, keys, 0)
    assert shifted.median().item() == pytest.approx(0.75, abs=0.02)
    assert (plain > 0).all()
    assert (plain <= 1).all()


@pytest.mark.parametrize(("advantage", "sign"), [(5.0, -1), (-5.0, 1)])
def test_nft_moves_towards_good_samples_and_away_from_bad_ones(advantage, sign):
    rows, beside = make(4)
    rows.old_velocity = rows.velocity.detach().clone()
    beside.advantage = torch.full((4,), advantage)
    step = -gradient(build("diffusion_nft").loss(rows, beside), rows)
    s = rows.sigma.reshape(-1, 1, 1, 1)
    before = row_mean((rows.noisy - s * rows.velocity - rows.clean) ** 2)
    after = row_mean((rows.noisy - s * (rows.velocity + 1e-2 * step) - rows.clean) ** 2)
    assert torch.equal((after - before).sign(), torch.full((4,), float(sign)))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("copy", {1: 0.0, 400: 0.0}),
        ("linear_to_0_5", {1: 0.001, 100: 0.1, 900: 0.5}),
        ("delayed_linear_to_0_999", {75: 0.0, 76: 0.0075, 1000: 0.999}),
        ("fixed", {1: 0.25, 9: 0.25}),
    ],
)
def test_the_old_policy_follows_its_published_schedule(schedule, expected):
    algorithm = build("diffusion_nft", old_policy_schedule=schedule, old_policy_decay=0.25)
    assert algorithm.rollout_policy == "old"
    assert {n: algorithm.old_policy_decay(n) for n in expected} == pytest.approx(expected)


def test_the_old_policy_may_be_updated_every_other_round():
    algorithm = build("diffusion_nft", old_policy_interval=2)
    assert [algorithm.old_policy_decay(n) for n in (1, 2, 3, 4)] == [None, 0.0, None, 0.0]


def test_one_stream_makes_omni_nft_the_joint_loss():
    rows, beside = make(4)
    joint = build("diffusion_nft").loss(rows, beside)
    torch.testing.assert_close(build("omni_nft").loss(rows, beside).loss, joint.loss)


def test_streams_are_normalised_by_themselves_and_weighted():
    rows, beside = make(4, streams={"video": (0, 20), "audio": (20, 24)})
    both = build("omni_nft", stream_weights={"audio": 3.0}).loss(rows, beside)
    video = build("omni_nft", stream_weights={"audio": 0.0}).loss(rows, beside)
    audio = build("omni_nft", stream_weights={"video": 0.0}).loss(rows, beside)
    torch.testing.assert_close(both.loss, 0.25 * video.loss + 0.75 * audio.loss)
    touched = gradient(audio, rows).flatten(1)
    assert touched[:, :20].abs().max() == 0
    assert touched[:, 20:].abs().min() > 0
    with pytest.raises(CapabilityError, match="stream_weights names 'text'"):
        build("omni_nft", stream_weights={"text": 1.0}).loss(rows, beside)


def test_dpo_trains_on_the_best_and_the_worst_of_every_group():
    rewards = torch.tensor([0.1, 0.9, 0.4, 0.5, 0.5, 0.5, 0.2, 0.3, 0.1])
    groups = ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    selection = build("diffusion_dpo").select(rewards, groups)
    assert list(selection.indices) == [1, 0, 7, 8]
    assert list(selection.noise_keys) == ["a", "a", "c", "c"]
    assert selection.unit == 2
    assert list(build("diffusion_dpo", keep_ties=True).select(rewards, groups).indices) == [1, 0, 3, 5, 7, 8]


def test_dpo_pulls_the_pair_apart():
    rows, beside = make(4)
    rows.reference_velocity = rows.velocity.detach().clone()
    result = build("diffusion_dpo", beta=10.0).loss(rows, beside)
    assert torch.equal(result.loss[0::2], result.loss[1::2])
    step = -gradient(result, rows)
    target = rows.noise - rows.clean
    before = row_mean((rows.velocity - target) ** 2)
    change = row_mean((rows.velocity + 1e-3 * step - target) ** 2) - before
    assert (change[0::2] < 0).all()
    assert (change[1::2] > 0).all()


def test_dgpo_has_the_gradient_of_the_groups_likelihood():
    rows, beside = make(6)
    beta = 4.0
    found = gradient(build("dgpo", beta=beta, clip_ratio=0.0, kl_coef=0.0).loss(rows, beside), rows)
    target = rows.noise - rows.clean
    gain = beside.advantage * (
        row_mean((rows.velocity - target) ** 2) - row_mean((rows.reference_velocity - target) ** 2)
    )
    z = beta * torch.stack([gain[beside.unit == g].mean() for g in range(3)])
    likelihood = -torch.nn.functional.logsigmoid(-z).mean() / beta
    expected = torch.autograd.grad(likelihood, rows.velocity)[0]
    torch.testing.assert_close(found, expected)


def test_dgpo_rows_that_left_the_clip_range_have_no_gradient():
    rows, beside = make(4)
    target = rows.noise - rows.clean
    rows.old_velocity = target + 1.01 * (rows.velocity.detach() - target)  # the current policy is better everywhere
    beside.advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    result = build("dgpo", clip_ratio=1e-4, kl_coef=0.1).loss(rows, beside)
    still = gradient(result, rows).flatten(1).abs().amax(1) == 0
    assert still.tolist() == [True, False, True, False]
    assert result.metrics["actor/pg_clipfrac"].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_dgpo_keeps_whole_groups_together():
    rewards = torch.arange(6.0)
    selection = build("dgpo").select(rewards, ["a", "b", "a", "b", "a", "b"])
    assert list(selection.indices) == [0, 2, 4, 1, 3, 5]
    assert selection.unit == 3
    with pytest.raises(DataError, match=r"groups of \[2, 4\] samples"):
        build("dgpo").select(rewards, ["a", "b", "a", "b", "a", "a"])


def test_sft_is_flow_matching():
    rows, beside = make(3)
    torch.testing.assert_close(
        build("sft").loss(rows, beside).loss, row_mean((rows.velocity - rows.noise + rows.clean) ** 2)
    )


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("diffusion_nft", {"mix_beta": 0.0}, "mix_beta"),
        ("diffusion_nft", {"old_policy_decay": 1.0}, "old_policy_decay"),
        ("omni_nft", {"stream_weights": {"audio": -1.0}}, "stream_weights.audio"),
        ("diffusion_dpo", {"beta": -1.0}, "beta"),
        ("dgpo", {"clip_ratio": 1.0}, "clip_ratio"),
        ("sft", {"timesteps_per_sample": 0}, "timesteps_per_sample"),
    ],
)
def test_impossible_options_are_refused_by_name(name, options, key):
    with pytest.raises(ConfigError, match=f"^{key}="):
        build(name, **options)


def test_levels_of_impossible_options_are_refused():
    with pytest.raises(ConfigError, match="timestep_fraction=0.0"):
        NoiseLevelOptions(timestep_fraction=0.0)
