"""Step kernels: the right distribution, the right marginals, and the same bits for a row in any batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.contracts.errors import ConfigError
from omni_portable.samplers.kernels import StepMoments, draw, log_prob, published_std, step_moments
from omni_portable.samplers.reduce import per_row, row_mean
from omni_portable.samplers.schedule import flow_match_schedule

KINDS = ["sde", "cps", "dance_sde"]
steady = settings(deadline=None, max_examples=40)


def rows(count, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((count, *shape), generator=generator) for _ in range(3)]


def sigmas(schedule, steps):
    values = torch.tensor(schedule.sigmas)
    index = torch.tensor(steps)
    return values[index], values[index + 1]


@steady
@given(
    st.sampled_from([*KINDS, "ode"]),
    st.lists(st.integers(0, 6), min_size=1, max_size=11),
    st.sampled_from([(5,), (3, 7), (2, 3, 5), (4, 16, 16)]),
    st.integers(0, 2**31),
)
def test_a_row_has_the_same_bits_in_any_batch(kind, steps, shape, seed):
    schedule = flow_match_schedule(8, shift=3.0)
    sample, velocity, noise = rows(len(steps), shape, seed)
    sigma, sigma_next = sigmas(schedule, steps)

    def run(chosen):
        moments = step_moments(
            kind, sample[chosen], velocity[chosen], sigma[chosen], sigma_next[chosen], schedule.sigma_max, 0.7
        )
        after = draw(moments, noise[chosen])
        scored = moments.dt if kind == "ode" else log_prob(kind, after, moments)
        return moments.mean, moments.std, moments.dt, after, scored

    whole = run(slice(None))
    for row in range(len(steps)):
        for alone, together in zip(run(slice(row, row + 1)), whole, strict=True):
            assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("threads", [1, 2])
def test_log_probs_do_not_depend_on_the_thread_count(threads):
    before = torch.get_num_threads()
    sample, velocity, noise = rows(1, (16, 64, 64))  # large enough for threaded reductions
    moments = step_moments("sde", sample, velocity, torch.tensor([0.8]), torch.tensor([0.7]), 0.9, 0.7)
    after = draw(moments, noise)
    try:
        torch.set_num_threads(threads)
        value = log_prob("sde", after, moments)
        assert torch.equal(value, log_prob("sde", after.repeat(3, 1, 1, 1), _repeat(moments, 3))[1:2])
    finally:
        torch.set_num_threads(before)


def _repeat(moments, times):
    return StepMoments(moments.mean.repeat(times, 1, 1, 1), moments.std.repeat(times), moments.dt.repeat(times))


@pytest.mark.parametrize("kind", KINDS)
def test_the_empirical_distribution_of_a_step_is_the_stated_one(kind):
    count = 200_000
    sample = torch.full((1, count), 0.3)
    velocity = torch.full((1, count), -1.1)
    moments = step_moments(kind, sample, velocity, torch.tensor([0.62]), torch.tensor([0.51]), 0.9, 0.8)
    noise = torch.randn((1, count), generator=torch.Generator().manual_seed(3))
    after = draw(moments, noise).double()
    mean, std = moments.mean[0, 0].item(), moments.std[0].item()
    assert abs(after.mean().item() - mean) < 3 * std / math.sqrt(count)
    assert abs(after.std().item() - std) < 3 * std / math.sqrt(2 * count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eta", [0.3, 0.7, 1.0])
def test_marginals_of_one_point_data(kind, eta):
    """Data at 0: the exact velocity is x / sigma, and x must stay N(0, sigma^2). Exact for cps, O(dt^2) otherwise."""

    def excess(sigma, sigma_next):
        unit = torch.ones(1, 1)
        m = step_moments(kind, unit, unit / sigma, torch.tensor([sigma]), torch.tensor([sigma_next]), 0.95, eta)
        variance = m.mean.double().item() ** 2 * sigma**2 + m.std.double().item() ** 2
        return variance - sigma_next**2

    if kind == "cps":
        assert abs(excess(0.7, 0.6)) < 1e-6
        assert abs(excess(0.2, 0.05)) < 1e-6
    else:
        coarse, fine = excess(0.7, 0.6), excess(0.7, 0.65)
        assert coarse > 1e-6
        assert fine / coarse == pytest.approx(0.25, abs=0.08)  # halving dt quarters the excess


@pytest.mark.parametrize("kind", ["sde", "dance_sde"])
def test_without_normaliser_only_the_constants_differ(kind):
    sample, velocity, noise = rows(4, (3, 5))
    moments = step_moments(kind, sample, velocity, torch.full((4,), 0.7), torch.full((4,), 0.6), 0.9, 0.7)
    after = draw(moments, noise)
    full, bare = log_prob(kind, after, moments), log_prob(kind, after, moments, include_normalizer=False)
    gaussian = torch.distributions.Normal(moments.mean, moments.std.view(-1, 1, 1)).log_prob(after).mean((1, 2))
    torch.testing.assert_close(full, gaussian)
    torch.testing.assert_close(full - bare, -torch.log(moments.std) - 0.5 * math.log(2 * math.pi))


def test_cps_keeps_its_published_form_whatever_the_normaliser():
    sample, velocity, noise = rows(2, (4,))
    moments = step_moments("cps", sample, velocity, torch.full((2,), 0.7), torch.full((2,), 0.6), 0.9, 0.7)
    after = draw(moments, noise)
    assert torch.equal(log_prob("cps", after, moments), log_prob("cps", after, moments, include_normalizer=False))
    torch.testing.assert_close(log_prob("cps", after, moments), -((after - moments.mean) ** 2).mean(1))


@pytest.mark.parametrize("kind", [*KINDS, "ode"])
def test_without_noise_there_is_no_log_prob(kind):
    sample, velocity, noise = rows(2, (4,))
    moments = step_moments(kind, sample, velocity, torch.full((2,), 0.7), torch.full((2,), 0.6), 0.9, 0.0)
    assert torch.equal(moments.std, torch.zeros(2))
    assert torch.equal(draw(moments, noise), moments.mean)
    torch.testing.assert_close(moments.mean, sample + velocity * (0.6 - 0.7))  # all kernels become Euler
    with pytest.raises(ConfigError, match="no log-prob"):
        log_prob(kind, moments.mean, moments)


def test_the_last_cps_step_has_no_log_prob():
    sample, velocity, _ = rows(2, (4,))
    moments = step_moments("cps", sample, velocity, torch.tensor([0.5, 0.1]), torch.tensor([0.4, 0.0]), 0.9, 0.7)
    with pytest.raises(ConfigError, match="no log-prob"):
        log_prob("cps", sample, moments)


def test_euler_is_the_stock_schedulers_step():
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(5)
    sample, velocity, _ = rows(2, (3, 4, 4))
    expected = scheduler.step(velocity, scheduler.timesteps[0], sample).prev_sample
    sigma, sigma_next = scheduler.sigmas[:1].repeat(2), scheduler.sigmas[1:2].repeat(2)
    assert torch.equal(step_moments("ode", sample, velocity, sigma, sigma_next, 0.9, 0.0).mean, expected)


@pytest.mark.parametrize("first", [1.0, 1.0 - 6e-8, 1.0 + 3.6e-7])
def test_a_first_sigma_of_nearly_one_uses_sigma_max(first):
    """Some shifts leave the scheduler's first sigma a rounding error beside 1; its variance must not explode."""
    sample, velocity, _ = rows(1, (4,))
    moments = step_moments("sde", sample, velocity, torch.tensor([first]), torch.tensor([0.9]), 0.9, 0.7)
    assert moments.std.item() == pytest.approx(0.7 * math.sqrt(1 / 0.1) * math.sqrt(0.1), rel=1e-5)


def test_published_std_leaves_out_the_step_size_for_the_flow_sde_only():
    std, dt = torch.tensor([0.6]), torch.tensor([-0.25])
    assert published_std("sde", std, dt).item() == pytest.approx(1.2)
    assert published_std("cps", std, dt) is std
    assert published_std("dance_sde", std, dt) is std


def test_half_precision_velocities_are_computed_with_in_fp32_and_latents_must_be_fp32():
    sample, velocity, _ = rows(2, (4,))
    sigma, sigma_next = torch.full((2,), 0.7), torch.full((2,), 0.6)
    half = step_moments("sde", sample, velocity.bfloat16(), sigma, sigma_next, 0.9, 0.7)
    full = step_moments("sde", sample, velocity.bfloat16().float(), sigma, sigma_next, 0.9, 0.7)
    assert half.mean.dtype == torch.float32
    assert torch.equal(half.mean, full.mean)
    with pytest.raises(TypeError, match="float32"):
        step_moments("sde", sample.bfloat16(), velocity, sigma, sigma_next, 0.9, 0.7)


def test_only_the_mean_carries_a_gradient_and_it_is_the_right_one():
    sample, velocity, noise = rows(2, (6,))
    velocity.requires_grad_()
    moments = step_moments("sde", sample, velocity, torch.full((2,), 0.7), torch.full((2,), 0.6), 0.9, 0.7)
    after = draw(moments, noise).detach()
    log_prob("sde", after, moments).sum().backward(retain_graph=True)
    per_element = (after - moments.mean) / moments.std.view(-1, 1) ** 2 / 6
    slope = torch.autograd.grad(moments.mean.sum(), velocity)[0]
    torch.testing.assert_close(velocity.grad, (per_element * slope).detach())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "heun"}, ConfigError),
        ({"noise_level": -0.1}, ConfigError),
        ({"noise_level": math.nan}, ConfigError),
        ({"sigma_max": 1.0}, ConfigError),
        ({"velocity": torch.zeros(2, 5)}, ValueError),
        ({"sigma": torch.tensor(0.7)}, ValueError),
        ({"sigma_next": torch.full((2,), 0.6, dtype=torch.float64)}, TypeError),
    ],
)
def test_impossible_arguments_are_refused(change, error):
    arguments = {
        "kind": "sde",
        "sample": torch.zeros(2, 4),
        "velocity": torch.zeros(2, 4),
        "sigma": torch.full((2,), 0.7),
        "sigma_next": torch.full((2,), 0.6),
        "sigma_max": 0.9,
        "noise_level": 0.7,
    }
    with pytest.raises(error):
        step_moments(**{**arguments, **change})


@steady
@given(st.integers(1, 9), st.integers(1, 700), st.integers(0, 2**31))
def test_row_mean_is_a_mean(count, width, seed):
    values = torch.randn((count, width), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(row_mean(values).double(), values.double().mean(1), atol=1e-6, rtol=1e-5)
    weights = torch.autograd.grad(row_mean(values.requires_grad_()).sum(), values)[0]
    assert torch.equal(weights, torch.full_like(values, 1.0) / width)


def test_per_row_is_independent_of_position():
    values = torch.rand(23, generator=torch.Generator().manual_seed(5)) + 0.01
    alone = torch.cat([per_row(torch.log, v.reshape(1)) for v in values])
    assert torch.equal(per_row(torch.log, values), alone)
