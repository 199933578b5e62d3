"""Sampling and scoring are the same arithmetic: on-policy ratios are exactly 1."""

from __future__ import annotations

import pytest
import torch

from omni_portable.contracts.errors import ConfigError, ConsistencyError
from omni_portable.contracts.rollout import Extent, Schedule
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.policy import join_conditioning, split_conditioning, transition

KINDS = [("sde", 0.7), ("cps", 0.8), ("dance_sde", 0.3)]
ROWS = 3


@pytest.fixture(scope="module")
def adapter(load_tiny):
    """A policy with a LoRA that is not at its initial value."""
    adapter = load_tiny("sd35", components=("transformer",))
    inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for _, tensor in lora_named_tensors(adapter.transformer):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return adapter


@pytest.fixture(scope="module")
def inputs(adapter):
    generator = torch.Generator().manual_seed(5)

    def conditioning():
        return {
            "prompt_embeds": torch.randn(ROWS, 12, 40, generator=generator),
            "pooled_prompt_embeds": torch.randn(ROWS, 32, generator=generator),
        }

    latents, noise = (torch.randn(ROWS, *adapter.latent_shape(Extent(16, 16)), generator=generator) for _ in range(2))
    return {"latents": latents, "conditioning": conditioning(), "negative": conditioning()}, noise


def step(adapter, inputs, **changes):
    arguments = inputs | {
        "step_index": torch.tensor([0, 1, 2]),
        "schedule": adapter.schedule(5, Extent(16, 16)),
        "kind": "sde",
        "noise_level": 0.7,
    }
    return transition(adapter, **(arguments | changes))


@pytest.mark.parametrize("guidance", [1.0, 4.5])
@pytest.mark.parametrize(("kind", "noise_level"), KINDS)
@pytest.mark.parametrize("normalizer", [True, False])
def test_replay_is_bit_exact_with_and_without_gradients(adapter, inputs, kind, noise_level, guidance, normalizer):
    given, noise = inputs
    common = {
        "kind": kind,
        "noise_level": noise_level,
        "guidance_scale": guidance,
        "include_normalizer": normalizer,
    }
    with torch.no_grad():
        sampled = step(adapter, given, noise=noise, **common)
        scored = step(adapter, given, next_latents=sampled.next_latents, **common)
    graded = step(adapter, given, next_latents=sampled.next_latents, **common)
    assert bool(torch.isfinite(sampled.log_prob).all())
    for replay in (scored, graded):
        assert torch.equal(torch.exp(replay.log_prob - sampled.log_prob), torch.ones(ROWS))
        for name in ("mean", "std", "dt", "velocity", "next_latents"):
            assert torch.equal(getattr(replay, name), getattr(sampled, name))
    assert graded.log_prob.requires_grad


def test_gradient_checkpointing_keeps_the_bits(adapter, inputs):
    given, noise = inputs
    with torch.no_grad():
        sampled = step(adapter, given, noise=noise)
    plain = gradients(adapter, step(adapter, given, next_latents=sampled.next_latents))
    adapter.transformer.enable_gradient_checkpointing()
    try:
        replay = step(adapter, given, next_latents=sampled.next_latents)
        assert torch.equal(replay.log_prob, sampled.log_prob)
        again = gradients(adapter, replay)
    finally:
        adapter.transformer.disable_gradient_checkpointing()
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def gradients(adapter, replay):
    names, tensors = zip(*lora_named_tensors(adapter.transformer), strict=True)
    found = torch.autograd.grad(replay.log_prob.sum(), tensors)
    by_name = dict(zip(names, found, strict=True))
    # The text queries of the last block are computed but nothing reads their result.
    idle = {name for name in names if name.startswith("transformer_blocks.1.attn.add_q_proj")}
    assert {name for name, gradient in by_name.items() if not gradient.any()} == idle
    return by_name


def test_a_changed_policy_changes_the_ratio(adapter, inputs):
    given, noise = inputs
    with torch.no_grad():
        sampled = step(adapter, given, noise=noise)
        name, tensor = next(lora_named_tensors(adapter.transformer))
        before = tensor.clone()
        tensor.add_(0.5)
        changed = step(adapter, given, next_latents=sampled.next_latents)
        tensor.copy_(before)
    assert not torch.equal(changed.log_prob, sampled.log_prob)


def test_drawing_moves_by_std_times_noise(adapter, inputs):
    given, noise = inputs
    with torch.no_grad():
        sampled = step(adapter, given, noise=noise)
    expected = sampled.mean + sampled.std.view(-1, 1, 1, 1) * noise
    assert torch.equal(sampled.next_latents, expected)
    assert bool((sampled.std > 0).all())


def test_mixed_rows_equal_their_own_kind(adapter, inputs):
    given, noise = inputs
    with torch.no_grad():
        mixed = step(adapter, given, noise=noise, stochastic=torch.tensor([False, True, False]))
        noisy = step(adapter, given, noise=noise)
        plain = step(adapter, given, kind="ode", noise_level=0.0)
    for name in ("next_latents", "mean", "std", "dt"):
        rows = getattr(mixed, name)
        assert torch.equal(rows[1], getattr(noisy, name)[1])
        assert torch.equal(rows[[0, 2]], getattr(plain, name)[[0, 2]])
    assert torch.equal(mixed.log_prob[1], noisy.log_prob[1])
    assert torch.equal(mixed.velocity, noisy.velocity)
    assert mixed.log_prob.isnan().tolist() == [True, False, True]
    assert bool(plain.log_prob.isnan().all())


def test_log_probs_have_no_gradient_through_a_drawn_sample(adapter, inputs):
    given, noise = inputs
    drawn = step(adapter, given, noise=noise)
    replay = step(adapter, given, next_latents=drawn.next_latents.detach())
    one, other = gradients(adapter, drawn), gradients(adapter, replay)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "either noise to draw with or next latents"),
        ({"noise": True, "next_latents": True}, "and without noise"),
        ({"next_latents": True, "kind": "ode"}, "stochastic rows only"),
        ({"next_latents": True, "stochastic": torch.tensor([True, False, True])}, "stochastic rows only"),
        ({"kind": "ode", "stochastic": torch.ones(ROWS, dtype=torch.bool)}, "kernel is 'ode'"),
        ({"noise": True, "stochastic": torch.ones(2, dtype=torch.bool)}, r"expected \(3,\) bool"),
        ({"noise": True, "step_index": torch.tensor([0, 1, 5])}, "step index 5 is outside a schedule of 5 steps"),
        ({"noise": True, "step_index": torch.tensor([-1, 1, 2])}, "is outside a schedule"),
        ({"noise": True, "step_index": torch.tensor([0])}, "step indices for 3 rows"),
        ({"noise": True, "latents": torch.zeros(ROWS, 8, 8, 8, dtype=torch.float64)}, "latents are"),
    ],
)
def test_contradictions_are_refused(adapter, inputs, changes, message):
    given, noise = inputs
    changes = {key: noise if value is True else value for key, value in changes.items()}
    with pytest.raises(ConsistencyError, match=message):
        step(adapter, given, **changes)


def test_a_noise_level_of_zero_has_no_log_prob(adapter, inputs):
    given, noise = inputs
    with pytest.raises(ConfigError):
        step(adapter, given, noise=noise, noise_level=0.0)


def test_the_timestep_is_sigma_times_the_schedule_s_scale(inputs):
    given, _ = inputs
    seen = []

    class Recorder:
        def velocity(self, latents, timesteps, conditioning, guidance_scale, negative=None):
            seen.append((timesteps, guidance_scale, negative))
            return latents

    schedule = Schedule((1.0, 0.75, 0.5, 0.0), timestep_scale=10.0)
    transition(Recorder(), step_index=torch.tensor([2, 0, 1]), schedule=schedule, kind="ode", noise_level=0.0, **given)
    assert seen[0][0].tolist() == [5.0, 10.0, 7.5]
    assert seen[0][1:] == (1.0, None)


def test_conditioning_joins_and_splits():
    positive, negative = {"a": torch.ones(1), "b": torch.ones(2)}, {"a": torch.zeros(1), "b": torch.zeros(2)}
    flat = join_conditioning(positive, negative)
    assert set(flat) == {"a", "b", "negative.a", "negative.b"}
    assert split_conditioning(flat) == (positive, negative)
    assert split_conditioning(join_conditioning(positive, None)) == (positive, None)
    with pytest.raises(ConsistencyError, match="reserved prefix"):
        join_conditioning({"negative.a": torch.ones(1)}, None)
