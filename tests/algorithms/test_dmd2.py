"""DMD2: the published gradient, its optimum where the densities are known, and what the algorithm asks of a run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.algorithms.diffusion_losses.dmd import (
    clean_prediction,
    distribution_matching_gradient,
    distribution_matching_loss,
)
from omni_portable.algorithms.dmd2 import DMD2Options
from omni_portable.algorithms.dmd2.algorithm import DMD2
from omni_portable.contracts.algorithm import Algorithm, Denoising, FakeScore, Rows, ScoreDistillation
from omni_portable.contracts.errors import ConfigError
from omni_portable.samplers.kernels import draw, step_moments
from omni_portable.samplers.schedule import flow_match_schedule

SCHEDULE = flow_match_schedule(4, shift=3.0)
steady = settings(deadline=None, max_examples=30)


def gaussian_velocity(noisy: torch.Tensor, sigma: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    """E[noise - clean | noisy] for clean ~ N(mean, std^2): from the regression of two Gaussians, not from any score."""
    s = sigma.reshape(-1, *[1] * (noisy.dim() - 1))
    variance = (1 - s) ** 2 * std**2 + s**2
    residual = noisy - (1 - s) * mean
    clean = mean + (1 - s) * std**2 / variance * residual
    return s / variance * residual - clean


def make(count: int, seed: int = 0, width: int = 5) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    clean, noise, teacher, fake = (torch.randn(count, 2, width, generator=g) for _ in range(4))
    sigma = torch.rand(count, generator=g) * 0.9 + 0.05
    s = sigma.reshape(-1, 1, 1)
    noisy = (1 - s) * clean + s * noise
    return {"clean": clean, "noisy": noisy, "sigma": sigma, "teacher_velocity": teacher, "fake_velocity": fake}


@steady
@given(count=st.integers(1, 5), seed=st.integers(0, 50))
def test_the_gradient_is_the_published_one(count: int, seed: int):
    rows = make(count, seed)
    found = distribution_matching_gradient(**rows).numpy()
    x, noisy, s, real, fake = (rows[name].double().numpy() for name in rows)
    for row in range(count):
        x_real, x_fake = noisy[row] - s[row] * real[row], noisy[row] - s[row] * fake[row]
        p_real, p_fake = x[row] - x_real, x[row] - x_fake
        np.testing.assert_allclose(found[row], (p_real - p_fake) / np.abs(p_real).mean(), rtol=2e-4, atol=1e-5)


@steady
@given(count=st.integers(1, 5), seed=st.integers(0, 50))
def test_the_loss_has_that_gradient_and_rows_do_not_mix(count: int, seed: int):
    rows = make(count, seed)
    gradient = distribution_matching_gradient(**rows)
    clean = rows["clean"].clone().requires_grad_()
    loss = distribution_matching_loss(clean, gradient)
    torch.testing.assert_close(loss, 0.5 * gradient.square().flatten(1).mean(1))
    found = torch.autograd.grad(loss.sum(), clean)[0]
    torch.testing.assert_close(found, gradient / gradient[0].numel(), rtol=1e-4, atol=1e-6)
    single = distribution_matching_gradient(**{name: tensor[:1] for name, tensor in rows.items()})
    torch.testing.assert_close(single[0], gradient[0])


@steady
@given(scale=st.floats(0.1, 10.0), seed=st.integers(0, 20))
def test_the_gradient_has_no_unit(scale: float, seed: int):
    rows = make(2, seed)
    scaled = {name: tensor if name == "sigma" else scale * tensor for name, tensor in rows.items()}
    expected = distribution_matching_gradient(**rows)
    torch.testing.assert_close(distribution_matching_gradient(**scaled), expected, rtol=1e-3, atol=1e-4)


def test_equal_denoisers_move_nothing_and_a_perfect_teacher_does_not_divide_by_zero():
    rows = make(2)
    rows["fake_velocity"] = rows["teacher_velocity"]
    assert not distribution_matching_gradient(**rows).any()
    exact = (rows["noisy"] - rows["clean"]) / rows["sigma"].reshape(-1, 1, 1)
    rows["teacher_velocity"] = exact
    torch.testing.assert_close(clean_prediction(rows["noisy"], exact, rows["sigma"]), rows["clean"])
    assert distribution_matching_gradient(**rows).isfinite().all()


def test_the_gradient_is_along_the_difference_of_scores():
    """x_fake - x_teacher = sigma^2 / (1 - sigma) (score_fake - score_teacher), scores by automatic differentiation."""
    rows = make(6, 3)
    noisy, sigma = rows["noisy"].double().requires_grad_(), rows["sigma"].double()
    s = sigma.reshape(-1, 1, 1)

    def score(mean: float, std: float) -> torch.Tensor:
        normal = torch.distributions.Normal((1 - s) * mean, torch.sqrt((1 - s) ** 2 * std**2 + s**2))
        return torch.autograd.grad(normal.log_prob(noisy).sum(), noisy)[0]

    fake = clean_prediction(noisy, gaussian_velocity(noisy, sigma, 0.3, 0.4), sigma)
    real = clean_prediction(noisy, gaussian_velocity(noisy, sigma, -1.0, 0.9), sigma)
    expected = s**2 / (1 - s) * (score(0.3, 0.4) - score(-1.0, 0.9))
    torch.testing.assert_close((fake - real).detach(), expected, rtol=1e-6, atol=1e-9)


def test_a_generator_of_gaussians_gets_the_teachers_distribution():
    """x0 = m + exp(l) z has the optimum m = mean, exp(l) = std; both denoisers are known exactly."""
    mean, std = 2.0, 0.5
    m, log_std = torch.zeros((), requires_grad=True), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([m, log_std], lr=0.03)
    g = torch.Generator().manual_seed(0)
    for step in range(500):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * (1 - step / 500)
        z, noise = torch.randn(64, 8, generator=g), torch.randn(64, 8, generator=g)
        sigma = 0.02 + 0.96 * torch.rand(64, generator=g)
        clean = m + log_std.exp() * z
        noisy = ((1 - sigma)[:, None] * clean + sigma[:, None] * noise).detach()
        teacher = gaussian_velocity(noisy, sigma, mean, std)
        fake = gaussian_velocity(noisy, sigma, float(m.detach()), math.exp(float(log_std.detach())))
        gradient = distribution_matching_gradient(clean.detach(), noisy, sigma, teacher, fake)
        optimizer.zero_grad()
        distribution_matching_loss(clean, gradient).mean().backward()
        optimizer.step()
    assert m.item() == pytest.approx(mean, abs=0.05)
    assert log_std.exp().item() == pytest.approx(std, abs=0.05)


def seen_rows(count: int = 4) -> tuple[Denoising, Rows]:
    rows = make(count)
    seen = Denoising(
        velocity=torch.zeros_like(rows["clean"]),
        noise=torch.randn_like(rows["clean"]),
        **{**rows, "clean": rows["clean"].requires_grad_()},
    )
    weight = torch.ones(count)
    return seen, Rows(weight * torch.nan, weight, weight, "ode")


def test_both_losses_have_one_value_for_every_row():
    algorithm = DMD2(DMD2Options())
    assert isinstance(algorithm, Algorithm)
    assert isinstance(algorithm, ScoreDistillation)
    seen, rows = seen_rows()
    student = algorithm.loss(seen, rows)
    assert all(values.shape == (4,) for values in (student.loss, *student.metrics.values()))
    assert not any(values.requires_grad for values in student.metrics.values())
    assert torch.autograd.grad(student.loss.mean(), seen.clean)[0].flatten(1).abs().amax(1).min() > 0
    velocity = torch.randn_like(seen.noise).requires_grad_()
    fake = algorithm.fake_loss(replace(seen, velocity=velocity, clean=seen.clean.detach()), rows)
    expected = (velocity - (seen.noise - seen.clean)).square().flatten(1).mean(1)
    torch.testing.assert_close(fake.loss, expected)
    for policy in ("teacher", "fake"):
        with pytest.raises(ValueError, match=f"no {policy} policy"):
            algorithm.loss(replace(seen, **{f"{policy}_velocity": None}), rows)


def test_it_requires_a_teacher_and_a_fake_network():
    requires = DMD2(DMD2Options(fake_updates_per_step=3, fake_lr=1e-5)).requires
    assert (requires.teacher, requires.fake_score) == (True, FakeScore(3, 1e-5))


def test_the_plan_replaces_all_noise_and_keeps_every_step():
    algorithm = DMD2(DMD2Options(teacher_guidance_scale=4.0))
    plan = algorithm.sampling_plan(SCHEDULE, 3, 1)
    assert (plan.stochastic_steps, plan.record_every_step, plan.keep_negative) == ((0, 1, 2), True, True)
    shown = algorithm.validation_plan(SCHEDULE)
    assert (shown.stochastic_steps, shown.record_every_step, shown.keep_negative) == ((0, 1, 2), False, False)
    x, v, e = (torch.randn(2, 3, generator=torch.Generator().manual_seed(i)) for i in range(3))
    sigma, after = torch.tensor([1.0, 0.7]), torch.tensor([0.7, 0.2])
    step = draw(step_moments(plan.kind, x, v, sigma, after, 0.7, plan.noise_level), e)
    clean = x - sigma[:, None] * v
    torch.testing.assert_close(step, (1 - after)[:, None] * clean + after[:, None] * e, rtol=1e-5, atol=1e-6)
    euler = DMD2(DMD2Options(renoise=False)).sampling_plan(SCHEDULE, 3, 1)
    assert (euler.kind, euler.stochastic_steps, euler.record_every_step, euler.keep_negative) == (
        "ode",
        (),
        True,
        False,
    )
    one = algorithm.sampling_plan(flow_match_schedule(1), 0, 1)
    assert (one.kind, one.stochastic_steps, one.record_every_step) == ("ode", (), True)


@steady
@given(seed=st.integers(0, 1000), count=st.integers(1, 4))
def test_trained_steps_and_levels_belong_to_the_key(seed: int, count: int):
    algorithm = DMD2(DMD2Options(steps_per_sample=count, sigma_min=0.1, sigma_max=0.8))
    keys = ["a", "b", "a"]
    steps, levels = algorithm.generated_steps(SCHEDULE, keys, seed), algorithm.noise_levels(SCHEDULE, keys, seed)
    assert steps.shape == levels.shape == (3, count)
    assert all(len(set(row.tolist())) == count and set(row.tolist()) <= set(range(4)) for row in steps)
    assert ((levels >= 0.1) & (levels < 0.8)).all()
    for drawn in (steps, levels):
        assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(levels[0], levels[1])


def test_all_steps_are_trained_alike_and_levels_are_uniform():
    algorithm = DMD2(DMD2Options(sigma_min=0.02, sigma_max=0.98))
    keys = [str(i) for i in range(2000)]
    counts = torch.bincount(algorithm.generated_steps(SCHEDULE, keys, 0).flatten(), minlength=4)
    assert counts.min() > 400
    levels = algorithm.noise_levels(SCHEDULE, keys, 0)
    assert levels.mean().item() == pytest.approx(0.5, abs=0.02)
    assert levels.std().item() == pytest.approx(0.96 / math.sqrt(12), abs=0.02)
    shifted = DMD2(DMD2Options(sigma_shift=3.0)).noise_levels(SCHEDULE, keys, 0)
    assert shifted.median().item() == pytest.approx(0.75, abs=0.02)


def test_the_student_may_have_noise_levels_of_its_own():
    assert DMD2(DMD2Options()).schedule(SCHEDULE) is SCHEDULE
    own = DMD2(DMD2Options(sigmas=[1.0, 0.9])).schedule(flow_match_schedule(2))
    assert own.sigmas == (1.0, float(np.float32(0.9)), 0.0)
    assert own.timestep_scale == SCHEDULE.timestep_scale
    with pytest.raises(ConfigError, match="rollout.num_steps=2"):
        DMD2(DMD2Options(sigmas=[1.0, 0.9])).schedule(SCHEDULE)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"teacher_guidance_scale": 0.5}, "teacher_guidance_scale=0.5"),
        ({"fake_updates_per_step": 0}, "fake_updates_per_step=0"),
        ({"fake_lr": -1.0}, "fake_lr=-1.0"),
        ({"steps_per_sample": 0}, "steps_per_sample=0"),
        ({"sigmas": [1.0, 1.0]}, "sigmas="),
        ({"sigmas": [0.5, 0.0]}, "sigmas="),
        ({"sigmas": [1.5, 0.5]}, "sigmas="),
        ({"sigma_min": 0.0}, "sigma_min=0.0"),
        ({"sigma_min": 0.5, "sigma_max": 0.5}, "sigma_max=0.5"),
        ({"sigma_shift": math.inf}, "sigma_shift=inf"),
        ({"normaliser_min": 0.0}, "normaliser_min=0.0"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict, key: str):
    with pytest.raises(ConfigError, match=f"^{key}"):
        DMD2Options(**options)


def test_more_trained_steps_than_a_sample_has_are_refused():
    with pytest.raises(ConfigError, match="at most 2"):
        DMD2Options(steps_per_sample=3).check(2)
