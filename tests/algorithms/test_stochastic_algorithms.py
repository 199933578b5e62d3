"""Algorithms on stored transitions beside Flow-GRPO: each is its published loss, with the shared terms on top."""

from __future__ import annotations

import pytest
import torch

from omni_portable.algorithms.diffusion_losses.dppo import flow_dppo_loss
from omni_portable.algorithms.diffusion_losses.guard import grpo_guard_loss
from omni_portable.algorithms.kl import gaussian_kl
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Algorithm
from omni_portable.contracts.errors import ConfigError
from omni_portable.samplers.schedule import flow_match_schedule
from tests.algorithms.test_flow_grpo import make_rows

NAMES = ("flow_grpo", "mix_grpo", "dance_grpo", "grpo_guard", "flow_dppo", "diffusion_opd")
SCHEDULE = flow_match_schedule(8, shift=3.0)


def build(name: str, **options: object) -> Algorithm:
    spec = registry.spec("algorithm", name)
    return spec.load()(spec.options(**options))


def replay_with_others(seed: int = 0):
    replay, rows, v = make_rows(5, seed)
    shift = torch.randn(replay.mean.shape, generator=torch.Generator().manual_seed(seed + 1))
    replay.old_mean = replay.mean.detach() + 0.05 * shift
    replay.teacher_mean = replay.mean.detach() - 0.2 * shift
    replay.teacher_velocity = v.detach() + shift
    return replay, rows, v


@pytest.mark.parametrize("name", NAMES)
def test_it_is_an_algorithm_on_transitions(name):
    algorithm = build(name)
    assert isinstance(algorithm, Algorithm)
    assert (algorithm.name, algorithm.row_kind, algorithm.rollout_policy) == (name, "transitions", "current")
    assert algorithm.sampling_plan(SCHEDULE, 1, 1).stochastic_steps
    replay, rows, _ = replay_with_others()
    result = algorithm.loss(replay, rows)
    assert all(values.shape == (5,) for values in (result.loss, *result.metrics.values()))


def test_dance_grpo_and_mix_grpo_are_flow_grpo_under_other_defaults():
    replay, rows, _ = replay_with_others()
    expected = build("flow_grpo").loss(replay, rows).loss
    assert torch.equal(build("dance_grpo").loss(replay, rows).loss, expected)
    assert torch.equal(build("mix_grpo").loss(replay, rows).loss, expected)
    assert build("dance_grpo").sampling_plan(SCHEDULE, 0, 1).kind == "dance_sde"


def test_a_progressive_window_slides_to_the_end_of_its_range_and_stays():
    algorithm = build("mix_grpo", rounds_per_window=2)
    windows = [algorithm.sampling_plan(SCHEDULE, seed=99, round_number=n).stochastic_steps for n in range(1, 8)]
    assert windows == [(0, 1), (0, 1), (2, 3), (2, 3), (3, 4), (3, 4), (3, 4)]


def test_guard_and_dppo_compare_with_the_policy_that_drew_the_rollout():
    replay, rows, _ = replay_with_others()
    for name in ("grpo_guard", "flow_dppo"):
        assert build(name).requires.old_policy
        assert build(name).old_policy_decay(7) == 0.0
    guard = grpo_guard_loss(
        replay.log_prob, rows.old_log_prob, rows.advantage, replay.mean, replay.old_mean, replay.std, -replay.dt,
        clip_ratio=2e-6, advantage_clip=5.0,
    )  # fmt: skip
    assert torch.equal(build("grpo_guard").loss(replay, rows).loss, guard.loss)
    dppo = flow_dppo_loss(
        replay.log_prob, rows.old_log_prob, rows.advantage, replay.mean, replay.old_mean, replay.std,
        kl_mask_threshold=1e-5,
    )  # fmt: skip
    assert torch.equal(build("flow_dppo").loss(replay, rows).loss, dppo.loss)
    replay.old_mean = None
    with pytest.raises(ValueError, match="no old policy"):
        build("grpo_guard").loss(replay, rows)


def test_a_teacher_may_be_added_to_any_of_them():
    replay, rows, _ = replay_with_others()
    plain = build("flow_grpo").loss(replay, rows)
    both = build("flow_grpo", distill_coef=0.5, kl_kind="exact").loss(replay, rows)
    kl = gaussian_kl(replay.mean, replay.teacher_mean, replay.std)
    torch.testing.assert_close(both.loss, plain.loss + 0.5 * kl)
    assert build("flow_grpo", distill_coef=0.5).requires.teacher


def test_distillation_alone_follows_the_teacher():
    replay, rows, v = replay_with_others()
    kl = build("diffusion_opd", kl_kind="exact").loss(replay, rows).loss
    torch.testing.assert_close(kl, gaussian_kl(replay.mean, replay.teacher_mean, replay.std))
    mse = build("diffusion_opd", objective="flow_matching_mse", distill_coef=2.0).loss(replay, rows).loss
    torch.testing.assert_close(mse, 2.0 * (v - replay.teacher_velocity).square().flatten(1).mean(1))


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("grpo_guard", {"clip_ratio": 0.0}, "clip_ratio"),
        ("flow_dppo", {"kl_mask_threshold": 0.0}, "kl_mask_threshold"),
        ("diffusion_opd", {"distill_coef": 0.0}, "distill_coef"),
        ("mix_grpo", {"rounds_per_window": 0}, "rounds_per_window"),
    ],
)
def test_impossible_options_are_refused_by_name(name, options, key):
    with pytest.raises(ConfigError, match=f"^{key}="):
        build(name, **options)
