"""Flow-GRPO as the trainer sees it: options, plans, loss."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.algorithms import flow_grpo
from omni_portable.algorithms.flow_grpo import SPEC, FlowGRPOOptions
from omni_portable.algorithms.kl import reference_kl
from omni_portable.contracts.algorithm import Algorithm, Replay, Rows
from omni_portable.contracts.errors import ConfigError
from omni_portable.samplers.kernels import STOCHASTIC_KINDS, draw, log_prob, step_moments
from omni_portable.samplers.schedule import flow_match_schedule

FlowGRPO = SPEC.load()
SCHEDULE = flow_match_schedule(8, shift=3.0)
steady = settings(deadline=None, max_examples=30)


def make_rows(count, seed=0, kind="sde", scale=0.1, importance=False):
    """Rows as a replay produces them, with gradients to a velocity `v`."""
    g = torch.Generator().manual_seed(seed)
    x, v, noise, reference = (torch.randn((count, 3, 4), generator=g) for _ in range(4))
    v.requires_grad_()
    sigma = torch.rand(count, generator=g) * 0.5 + 0.4
    moments = step_moments(kind, x, v, sigma, sigma - 0.1, SCHEDULE.sigma_max, 0.7)
    after = draw(moments, noise).detach()
    lp = log_prob(kind, after, moments)
    rows = Rows(
        old_log_prob=lp.detach() + scale * torch.randn(count, generator=g),
        advantage=torch.randn(count, generator=g),
        weight=torch.rand(count, generator=g) + 0.5,
        step_kind=kind,
        importance_weight=torch.rand(count, generator=g) if importance else None,
    )
    reference_mean = moments.mean.detach() + 0.1 * reference
    return Replay(lp, moments.mean, moments.std, moments.dt, v, reference_mean), rows, v


def take(batch, index):
    """The same dataclass with the rows `index` of every tensor."""
    picked = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return type(batch)(**{k: t[index] if isinstance(t, torch.Tensor) else t for k, t in picked.items()})


def test_the_spec_loads_without_torch_and_fits_the_contract():
    code = f"import sys; from {flow_grpo.__name__} import SPEC; SPEC.options(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    algorithm = FlowGRPO(FlowGRPOOptions())
    assert isinstance(algorithm, Algorithm)
    assert SPEC.capabilities["step_kinds"] == STOCHASTIC_KINDS
    assert algorithm.name == SPEC.name == "flow_grpo"


@pytest.mark.parametrize("coefficient", [0.0, 0.04])
def test_a_reference_policy_is_required_only_for_the_kl(coefficient):
    assert FlowGRPO(FlowGRPOOptions(kl_coef=coefficient)).requires.reference_policy is (coefficient > 0)


@steady
@given(st.integers(0, 2**60), st.sampled_from(["random", "subset"]), st.integers(1, 3))
def test_plans_are_a_function_of_schedule_and_seed_and_stay_in_range(seed, mode, size):
    options = FlowGRPOOptions(step_kind="cps", window_mode=mode, window_size=size, window_range=[1, 5], noise_level=0.8)
    plan = FlowGRPO(options).sampling_plan(SCHEDULE, seed)
    assert plan == FlowGRPO(options).sampling_plan(SCHEDULE, seed)
    assert (plan.kind, plan.noise_level, len(plan.stochastic_steps)) == ("cps", 0.8, size)
    assert set(plan.stochastic_steps) <= {1, 2, 3, 4}
    assert plan.record_transitions


def test_windows_move_between_rollouts():
    algorithm = FlowGRPO(FlowGRPOOptions(window_mode="random", window_size=2))
    assert len({algorithm.sampling_plan(SCHEDULE, seed).stochastic_steps for seed in range(40)}) == 6


def test_fixed_and_full_windows():
    def steps(**keys):
        return FlowGRPO(FlowGRPOOptions(**keys)).sampling_plan(SCHEDULE, 3).stochastic_steps

    assert steps() == (0, 1, 2, 3, 4, 5, 6)
    assert steps(window_mode="fixed", stochastic_steps=[0, 4]) == (0, 4)
    assert steps(window_mode="fixed", window_size=2, window_range=[3, 6]) == (3, 4)
    assert steps(window_mode="fixed", window_size=2) == (0, 1)


def test_validation_is_deterministic_and_records_nothing():
    plan = FlowGRPO(FlowGRPOOptions()).validation_plan(SCHEDULE)
    assert (plan.kind, plan.stochastic_steps, plan.record_transitions) == ("ode", (), False)


@pytest.mark.parametrize(
    "keys",
    [
        {"noise_level": 0.0},
        {"noise_level": -1.0},
        {"noise_level": float("nan")},
        {"step_kind": "cps", "noise_level": 1.2},
        {"clip_ratio": 0.0},
        {"clip_ratio": 1.5},
        {"advantage_clip": 0.0},
        {"std_ddof": 2},
        {"advantage_epsilon": 0.0},
        {"kl_coef": -0.1},
        {"window_mode": "random"},
        {"window_mode": "random", "window_size": 3, "window_range": [4, 6]},
        {"window_mode": "random", "window_size": 1, "window_range": [4, 4]},
        {"window_mode": "random", "window_size": 1, "window_range": [4]},
        {"window_mode": "random", "window_size": 1, "stochastic_steps": [1]},
        {"window_mode": "all", "window_size": 2},
        {"window_mode": "fixed"},
        {"window_mode": "fixed", "window_size": 2, "stochastic_steps": [1, 2]},
    ],
)
def test_impossible_options_are_refused(keys):
    with pytest.raises(ConfigError):
        FlowGRPOOptions(**keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"window_mode": "random", "window_size": 2, "window_range": [4, 9]},
        {"window_mode": "random", "window_size": 8},
        {"window_mode": "fixed", "stochastic_steps": [8]},
        {"window_mode": "fixed", "stochastic_steps": [7], "step_kind": "cps"},
    ],
)
def test_windows_that_do_not_fit_the_schedule_are_refused(keys):
    with pytest.raises(ConfigError):
        FlowGRPO(FlowGRPOOptions(**keys)).sampling_plan(SCHEDULE, 0)


def test_on_policy_the_ratio_is_one_and_the_gradient_is_the_policy_gradient():
    replay, rows, v = make_rows(6, scale=0.0)
    result = FlowGRPO(FlowGRPOOptions()).loss(replay, rows)
    assert torch.equal(result.metrics["actor/ratio"], torch.ones(6))
    assert result.metrics["actor/pg_clipfrac"].sum() == 0
    got = torch.autograd.grad(result.loss.sum(), v, retain_graph=True)[0]
    expected = torch.autograd.grad(-(rows.advantage * replay.log_prob).sum(), v)[0]
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("advantage", "flat"), [(1.0, True), (-1.0, False)])
def test_clipping_stops_the_gradient_only_where_it_would_go_further(advantage, flat):
    replay, rows, v = make_rows(3, scale=0.0)
    rows.old_log_prob = rows.old_log_prob - 0.5  # the ratio is e^0.5 everywhere
    rows.advantage = torch.full((3,), advantage)
    result = FlowGRPO(FlowGRPOOptions(clip_ratio=0.2)).loss(replay, rows)
    assert result.metrics["actor/pg_clipfrac_higher"].tolist() == [1.0, 1.0, 1.0]
    gradient = torch.autograd.grad(result.loss.sum(), v)[0]
    assert (gradient.abs().max().item() == 0.0) is flat


def test_advantages_are_clamped_and_importance_weights_multiply_the_rows():
    replay, rows, _ = make_rows(4, importance=True)
    rows.advantage = rows.advantage * 100
    algorithm = FlowGRPO(FlowGRPOOptions(advantage_clip=2.0, clip_ratio=0.9))
    weighted = algorithm.loss(replay, rows).loss
    rows.importance_weight, weights = None, rows.importance_weight
    plain = algorithm.loss(replay, rows).loss
    torch.testing.assert_close(weighted, plain * weights)
    ratio = torch.exp(replay.log_prob - rows.old_log_prob)
    torch.testing.assert_close(plain, -rows.advantage.clamp(-2, 2) * ratio)


@steady
@given(
    st.integers(2, 12),
    st.integers(1, 11),
    st.sampled_from(STOCHASTIC_KINDS),
    st.sampled_from(["published", "exact"]),
    st.booleans(),
)
def test_loss_and_gradient_do_not_depend_on_the_split(count, cut, kind, kl_kind, importance):
    cut = min(cut, count - 1)
    algorithm = FlowGRPO(FlowGRPOOptions(kl_coef=0.04, kl_kind=kl_kind, clip_ratio=0.05))
    replay, rows, v = make_rows(count, seed=count * 31 + cut, kind=kind, importance=importance)
    whole = algorithm.loss(replay, rows)
    parts = [(take(replay, s), take(rows, s)) for s in (slice(0, cut), slice(cut, None))]
    split = [algorithm.loss(*part) for part in parts]
    torch.testing.assert_close(torch.cat([p.loss for p in split]), whole.loss)
    for name, values in whole.metrics.items():
        torch.testing.assert_close(torch.cat([p.metrics[name] for p in split]), values)
    total = rows.weight.sum()
    expected = torch.autograd.grad((whole.loss * rows.weight).sum() / total, v, retain_graph=True)[0]
    loss = sum((p.loss * r.weight).sum() for p, (_, r) in zip(split, parts, strict=True)) / total
    torch.testing.assert_close(torch.autograd.grad(loss, v)[0], expected)


def test_rows_of_weight_zero_change_neither_loss_nor_gradient():
    algorithm = FlowGRPO(FlowGRPOOptions(kl_coef=0.04))
    replay, rows, v = make_rows(6)
    rows.weight[4:] = 0.0
    rows.advantage[4:] = 1e6
    result = algorithm.loss(replay, rows)
    got = torch.autograd.grad((result.loss * rows.weight).sum() / rows.weight.sum(), v, retain_graph=True)[0]
    kept = slice(0, 4)
    few = algorithm.loss(take(replay, kept), take(rows, kept))
    alone = (few.loss * rows.weight[kept]).sum() / rows.weight[kept].sum()
    torch.testing.assert_close(torch.autograd.grad(alone, v)[0], got)
    assert got[4:].abs().max() == 0


@pytest.mark.parametrize("kind", STOCHASTIC_KINDS)
def test_published_and_exact_kl_differ_by_the_step_size_for_the_flow_sde_only(kind):
    replay, _, _ = make_rows(5, kind=kind)
    exact = reference_kl(replay.mean, replay.reference_mean, replay.std, replay.dt, kind, "exact")
    published = reference_kl(replay.mean, replay.reference_mean, replay.std, replay.dt, kind, "published")
    normal = torch.distributions.Normal
    std = replay.std.view(-1, 1, 1)
    true = torch.distributions.kl_divergence(normal(replay.mean, std), normal(replay.reference_mean, std)).mean((1, 2))
    torch.testing.assert_close(exact, true)
    torch.testing.assert_close(published, true * -replay.dt if kind == "sde" else true)


def test_the_kl_is_added_and_logged_and_its_absence_is_an_error():
    replay, rows, _ = make_rows(4)
    with_kl = FlowGRPO(FlowGRPOOptions(kl_coef=0.5, kl_kind="exact")).loss(replay, rows)
    without = FlowGRPO(FlowGRPOOptions()).loss(replay, rows)
    torch.testing.assert_close(with_kl.loss - without.loss, 0.5 * with_kl.metrics["actor/kl_loss"])
    assert "actor/kl_loss" not in without.metrics
    replay.reference_mean = None
    with pytest.raises(ValueError, match="reference policy"):
        FlowGRPO(FlowGRPOOptions(kl_coef=0.5)).loss(replay, rows)
    with pytest.raises(ConfigError, match="KL kind"):
        reference_kl(replay.mean, replay.mean, replay.std, replay.dt, "sde", "exakt")


def test_metrics_are_rows_without_gradient():
    replay, rows, _ = make_rows(4)
    metrics = FlowGRPO(FlowGRPOOptions(kl_coef=0.1, clip_ratio=0.05)).loss(replay, rows).metrics
    names = {"ppo_kl", "pg_clipfrac", "pg_clipfrac_higher", "pg_clipfrac_lower", "ratio", "pg_loss", "kl_loss"}
    assert set(metrics) == {f"actor/{name}" for name in names}
    for values in metrics.values():
        assert values.shape == (4,)
        assert not values.requires_grad
    assert torch.equal(
        metrics["actor/pg_clipfrac"], metrics["actor/pg_clipfrac_higher"] + metrics["actor/pg_clipfrac_lower"]
    )
    torch.testing.assert_close(metrics["actor/ppo_kl"], rows.old_log_prob - replay.log_prob.detach())


def test_a_schedule_whose_last_step_would_be_noiseless_is_refused_when_paired() -> None:
    options = FlowGRPOOptions(step_kind="cps", noise_level=0.5, window_mode="fixed", stochastic_steps=[1, 7])
    options.check(9)
    with pytest.raises(ConfigError, match="step 7 is the last one"):
        options.check(8)
