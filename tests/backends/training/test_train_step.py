from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.contracts.algorithm import LossRows, Requires
from omni_portable.contracts.errors import CapabilityError, ConsistencyError, DataError, NonFiniteError
from omni_portable.contracts.rollout import SamplingPlan, Schedule
from omni_portable.contracts.training import TrainEngine
from tests.backends.training.toy import (
    PLAN,
    ToyAlgorithm,
    assert_equal,
    make_batch,
    make_config,
    make_setup,
    make_trajectories,
    snapshot,
)

pytestmark = pytest.mark.usefixtures("toy")


def build(*, lora: int = 0, requires: Requires | None = None, dtype: torch.dtype = torch.float32, **actor: object):
    config = make_config(**actor)
    config.model.lora.rank = lora
    return SingleTrainEngine(make_setup(config, requires=requires, dtype=dtype))


def weights(engine: SingleTrainEngine, policy: str = "current") -> dict[str, torch.Tensor]:
    return snapshot(dict(engine.weights(policy)))


def gradients(engine: SingleTrainEngine, batch, algorithm=None) -> dict[str, torch.Tensor]:
    """Gradients of one train step, caught before the optimizer takes them."""
    found: dict[str, torch.Tensor] = {}

    def catch(norm: torch.Tensor) -> None:
        found.update({n: m.grad.clone() for n, m in engine._optimizer.masters.items() if m.grad is not None})

    engine._optimizer.step = catch
    engine.train_step(batch, algorithm or ToyAlgorithm())
    return found


def test_it_is_a_train_engine():
    assert isinstance(build(), TrainEngine)


@pytest.mark.parametrize("lora", [0, 2])
@pytest.mark.parametrize("kind", ["sde", "cps", "dance_sde"])
@pytest.mark.parametrize("guidance_scale", [1.0, 2.5])
def test_ratio_is_exactly_one_before_the_first_update(lora: int, kind: str, guidance_scale: float):
    plan = SamplingPlan(kind, noise_level=0.8, stochastic_steps=(0, 1, 2))
    trajectories = make_trajectories(6, plan=plan, guidance_scale=guidance_scale)
    result = build(lora=lora).train_step(make_batch(trajectories), ToyAlgorithm())
    assert torch.equal(result.log_probs, torch.stack([t.log_probs for t in trajectories]))
    assert result.metrics["actor/ratio_max_dev"] == 0.0
    assert result.metrics["actor/ratio_mean"] == 1.0
    assert result.metrics["actor/ratio_std"] == 0.0


@pytest.mark.parametrize("actor", [{}, {"gradient_checkpointing": True}, {"micro_batch_size": 3}])
def test_log_probs_are_the_bits_of_the_training_forward(actor: dict):
    engine = build(**actor)
    batch = make_batch(make_trajectories(7))
    engine.train_step(batch, ToyAlgorithm())
    scored = engine.log_probs(batch)
    assert not torch.equal(scored, torch.stack([t.log_probs for t in batch.trajectories]))
    assert torch.equal(engine.train_step(batch, ToyAlgorithm()).log_probs, scored)


def test_loss_equals_the_written_formula_and_autograd():
    batch = make_batch(make_trajectories(4), weights=torch.tensor([1.0, 0.5, 0.0, 2.0]))
    engine = build(grad_clip=0.0)
    found = gradients(engine, batch)
    other = build()
    total = torch.zeros(())
    for sample in (0, 1, 3):  # one sample at a time, all stored steps, no engine code but the adapter's
        for step in range(2):
            log_prob = _log_prob(other._adapter, batch.trajectories[sample], step)
            ratio = torch.exp(log_prob - batch.trajectories[sample].log_probs[step])
            total = total - batch.advantages[sample] * ratio * batch.weights[sample]
    loss = total / (3.5 * 2)
    loss.backward()
    for name, parameter in other._module.named_parameters():
        if parameter.grad is None:
            assert name not in found
        else:
            torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=1e-5)


def _log_prob(adapter, trajectory, step: int) -> torch.Tensor:
    """sde log-prob by hand (sigma, dt and eta of the toy's schedule)."""
    sigmas = trajectory.request.schedule.sigmas
    index = int(trajectory.step_indices[step])
    sigma, dt = sigmas[index], sigmas[index + 1] - sigmas[index]
    x, y = trajectory.latents[step : step + 1], trajectory.next_latents[step : step + 1]
    cond = {"tokens": trajectory.conditioning["tokens"][None]}
    v = adapter.velocity(x, torch.tensor([sigma * 1000]), cond, 1.0)
    s = 0.7 * math.sqrt(sigma / (1 - (sigma if sigma < 1 else sigmas[1])))
    mean = x * (1 + s * s * dt / (2 * sigma)) + v * (1 + s * s * (1 - sigma) / (2 * sigma)) * dt
    std = s * math.sqrt(-dt)
    return (-((y - mean) ** 2) / (2 * std * std) - math.log(std) - 0.5 * math.log(2 * math.pi)).mean()


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 9), zeros=st.sets(st.integers(0, 8), max_size=8))
def test_gradient_does_not_depend_on_the_micro_batch_split(size: int, zeros: set[int]):
    kept = torch.ones(9)
    kept[list(zeros)] = 0.0
    batch = make_batch(make_trajectories(9), weights=kept)
    whole, split = gradients(build(micro_batch_size=9), batch), gradients(build(micro_batch_size=size), batch)
    assert whole.keys() == split.keys()
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], atol=1e-6, rtol=1e-6)


def test_zero_weight_samples_leave_numerator_and_denominator():
    trajectories = make_trajectories(6)
    poisoned = replace(trajectories[1], latents=trajectories[1].latents.clone())
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    batch = make_batch([trajectories[0], poisoned, *trajectories[2:]], weights=mask)
    algorithm = ToyAlgorithm()
    masked = gradients(build(micro_batch_size=2), batch, algorithm)
    assert all("r1" not in rows.sample_ids and "r4" not in rows.sample_ids for rows in algorithm.seen)
    keep = [0, 2, 3, 5]
    alone = make_batch([trajectories[i] for i in keep], advantages=batch.advantages[keep])
    for name, gradient in gradients(build(micro_batch_size=2), alone).items():
        torch.testing.assert_close(masked[name], gradient, atol=1e-6, rtol=1e-6)


def test_weights_scale_rows_and_their_total_divides_once():
    trajectories = make_trajectories(3)
    doubled = make_batch([*trajectories, trajectories[0]], advantages=torch.tensor([1.0, -0.5, 0.3, 1.0]))
    weighted = make_batch(
        trajectories, advantages=torch.tensor([1.0, -0.5, 0.3]), weights=torch.tensor([2.0, 1.0, 1.0])
    )
    left, right = gradients(build(), doubled), gradients(build(), weighted)
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-6, rtol=1e-6)


def test_metrics_are_weighted_means_and_ratio_statistics():
    engine = build(micro_batch_size=2)
    batch = make_batch(make_trajectories(5))
    engine.train_step(batch, ToyAlgorithm())
    before = engine.log_probs(batch).double()
    old = torch.stack([t.log_probs for t in batch.trajectories]).double()
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    metrics = engine.train_step(replace(batch, weights=weight), ToyAlgorithm()).metrics
    rows = (before - old)[weight > 0].flatten()
    ratio = torch.exp(rows)
    assert metrics["actor/ppo_kl"] == pytest.approx(float(-rows.mean()), abs=1e-6)
    assert metrics["actor/ratio_mean"] == pytest.approx(float(ratio.mean()), abs=1e-6)
    assert metrics["actor/ratio_std"] == pytest.approx(float(ratio.std()), rel=1e-3)
    assert metrics["actor/ratio_max_dev"] == pytest.approx(float((ratio - 1).abs().max()), abs=1e-6)
    assert metrics["actor/grad_norm"] > 0
    assert metrics["actor/lr"] == pytest.approx(1e-2)
    assert "actor/ratio" not in metrics


def test_ratio_is_taken_against_given_old_log_probs():
    trajectories = make_trajectories(4)
    old = torch.stack([t.log_probs for t in trajectories]) - math.log(1.5)
    metrics = build().train_step(make_batch(trajectories, old_log_probs=old), ToyAlgorithm(clip=9.0)).metrics
    assert metrics["actor/ratio_mean"] == pytest.approx(1.5, rel=1e-5)


@pytest.mark.parametrize("weight", [torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.full((4,), torch.nan)])
def test_bad_weights_are_refused(weight: torch.Tensor):
    engine = build()
    before = weights(engine)
    with pytest.raises(DataError, match="weight"):
        engine.train_step(make_batch(make_trajectories(4), weights=weight), ToyAlgorithm())
    assert_equal(weights(engine), before)


class PoisonedLoss(ToyAlgorithm):
    def loss(self, replay, rows) -> LossRows:
        result = super().loss(replay, rows)
        factor = torch.tensor([torch.inf if name in ("r2", "r5") else 1.0 for name in rows.sample_ids])
        return LossRows(result.loss * factor, result.metrics)


class PoisonedGradient(ToyAlgorithm):
    """Finite losses whose gradient is infinite in r5: d sqrt(x) at 0."""

    def loss(self, replay, rows) -> LossRows:
        result = super().loss(replay, rows)
        zero = replay.log_prob - replay.log_prob.detach()
        steep = torch.stack([z.sqrt() if name == "r5" else z for z, name in zip(zero, rows.sample_ids, strict=True)])
        return LossRows(result.loss + steep, result.metrics)


@pytest.mark.parametrize(
    ("algorithm", "named", "not_named"),
    [(PoisonedLoss(), ("r2", "r5"), ("r0", "r1")), (PoisonedGradient(), ("r4", "r5"), ("r1", "r2", "r6"))],
)
def test_non_finite_values_name_their_samples_and_change_nothing(algorithm, named, not_named):
    engine = build(micro_batch_size=2, ema_decay=0.5)
    batch = make_batch(make_trajectories(8))
    engine.train_step(batch, ToyAlgorithm())
    before, average = weights(engine), weights(engine, "ema")
    optimizer = snapshot(engine._optimizer.state_tensors())
    with pytest.raises(NonFiniteError) as caught:
        engine.train_step(batch, algorithm)
    assert all(name in caught.value.problem for name in named)
    assert not any(name in caught.value.problem for name in not_named)
    assert_equal(weights(engine), before)
    assert_equal(weights(engine, "ema"), average)
    assert_equal(snapshot(engine._optimizer.state_tensors()), optimizer)
    assert engine.optimizer_steps == 1
    assert all(p.grad is None for p in engine._module.parameters())


def test_a_failed_step_leaves_no_trace_in_the_next_one():
    batch = make_batch(make_trajectories(8))
    clean, failed = build(), build()
    with pytest.raises(NonFiniteError):
        failed.train_step(batch, PoisonedLoss())
    clean.train_step(batch, ToyAlgorithm())
    failed.train_step(batch, ToyAlgorithm())
    assert_equal(weights(clean), weights(failed))


def test_a_schedule_that_the_engine_did_not_run_is_refused():
    trajectories = make_trajectories(4)
    trajectories[2] = replace(trajectories[2], schedule_fingerprint="0" * 16)
    with pytest.raises(ConsistencyError, match=r"request 'r2' .* engine 'toy' ran 0{16}"):
        build().log_probs(make_batch(trajectories))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"schedule": Schedule((1.0, 0.8, 0.5, 0.25, 0.0))}, "schedule"),
        ({"plan": replace(PLAN, noise_level=0.9)}, "noise level"),
        ({"plan": replace(PLAN, kind="cps")}, "step kernel"),
        ({"plan": replace(PLAN, include_normalizer=False)}, "normaliser"),
        ({"guidance_scale": 3.0}, "guidance scale"),
    ],
)
def test_rows_of_one_micro_batch_must_agree(change: dict, what: str):
    trajectories = make_trajectories(4)
    request = replace(trajectories[3].request, **change)
    trajectories[3] = replace(trajectories[3], request=request, schedule_fingerprint=request.schedule.fingerprint)
    with pytest.raises(ConsistencyError, match=f"'r0' and 'r3' .* differ in .*{what}"):
        build().train_step(make_batch(trajectories), ToyAlgorithm())
    build(micro_batch_size=3).train_step(make_batch(trajectories), ToyAlgorithm())


def test_different_windows_per_sample_share_a_forward():
    early = make_trajectories(4, plan=replace(PLAN, stochastic_steps=(0, 1)))
    late = make_trajectories(4, plan=replace(PLAN, stochastic_steps=(1, 2)), seed=3)
    late = [replace(t, request=replace(t.request, plan=early[0].request.plan)) for t in late]
    mixed = [early[0], late[1], early[2], late[3]]
    found = build().log_probs(make_batch(mixed))
    torch.testing.assert_close(found, torch.stack([t.log_probs for t in mixed]), atol=1e-6, rtol=1e-6)


def test_batches_without_transitions_or_of_other_shapes_are_refused():
    trajectories = make_trajectories(4)
    none = torch.empty(0)
    bare = [replace(t, latents=none, next_latents=none, step_indices=none.long(), log_probs=none) for t in trajectories]
    with pytest.raises(CapabilityError, match="stored no transitions"):
        build().log_probs(make_batch(bare))
    with pytest.raises(DataError, match="without trajectories"):
        build().train_step(make_batch([]), ToyAlgorithm())
    with pytest.raises(DataError, match="advantages"):
        build().train_step(make_batch(trajectories, advantages=torch.zeros(3)), ToyAlgorithm())
    trajectories[1] = replace(trajectories[1], latents=trajectories[1].latents[:1])
    with pytest.raises(ConsistencyError, match="'r1'"):
        build().train_step(make_batch(trajectories), ToyAlgorithm())


def test_rows_of_the_wrong_shape_from_an_algorithm_are_refused():
    class Broadcast(ToyAlgorithm):
        def loss(self, replay, rows) -> LossRows:
            return LossRows(super().loss(replay, rows).loss.mean(), {})

    with pytest.raises(ValueError, match="one value for each of"):
        build().train_step(make_batch(make_trajectories(4)), Broadcast())


def test_training_raises_the_reward_weighted_log_prob():
    engine = build(lr=3e-2)
    batch = make_batch(make_trajectories(8))
    centred = batch.advantages[:, None]
    start = float((engine.log_probs(batch) * centred).mean())
    for _ in range(10):
        engine.train_step(batch, ToyAlgorithm(clip=10.0))
    assert float((engine.log_probs(batch) * centred).mean()) > start + 1e-3


def test_narrow_weights_train_through_fp32_masters():
    engine = build(dtype=torch.bfloat16, lr=1e-5, micro_batch_size=2)
    batch = make_batch(make_trajectories(4))
    start = snapshot(engine._optimizer.masters)
    for _ in range(3):  # each update is far below bf16's resolution at these weights
        engine.train_step(batch, ToyAlgorithm())
    moved = {name: master - start[name] for name, master in engine._optimizer.masters.items() if "unused" not in name}
    assert all(bool((delta != 0).any()) for delta in moved.values())
    for name, tensor in engine.weights():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, engine._optimizer.masters[name].to(torch.bfloat16))
    assert all(p.grad is None for p in engine._module.parameters())


def test_gradients_of_narrow_weights_accumulate_in_fp32():
    """Eight copies of a micro-batch give the gradient of one: scaling by 1/8 is exact in bf16, adding up is not."""
    trajectories = make_trajectories(3)
    repeated = make_batch(trajectories * 8, advantages=torch.tensor([1.0, -0.5, 0.3] * 8))
    single = make_batch(trajectories, advantages=torch.tensor([1.0, -0.5, 0.3]))
    many = gradients(build(dtype=torch.bfloat16, micro_batch_size=3), repeated)
    one = gradients(build(dtype=torch.bfloat16, micro_batch_size=3), single)
    for name in one:
        assert many[name].dtype == torch.float32
        torch.testing.assert_close(many[name], one[name], atol=1e-9, rtol=1e-5)
