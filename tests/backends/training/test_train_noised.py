"""Training rows made of clean samples and fresh noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.algorithms.base import DiffusionAlgorithm, as_denoising, as_replay
from omni_portable.contracts.algorithm import Denoising, LossRows, Requires
from omni_portable.contracts.errors import ConsistencyError, DataError
from omni_portable.samplers.noise import noise_seed, normal
from omni_portable.samplers.reduce import row_mean
from tests.backends.training.toy import assert_equal, make_batch, make_config, make_setup, make_trajectories, snapshot

pytestmark = pytest.mark.usefixtures("toy")
SIGMAS = (0.25, 0.75)


class MatchVelocity(DiffusionAlgorithm):
    """Flow matching, with levels that differ by sample; keeps what it saw."""

    name, row_kind = "match", "noised"

    def __init__(self, requires: Requires | None = None) -> None:
        self.requires = requires or Requires()
        self.seen: list[Denoising] = []

    def noise_levels(self, schedule, keys, seed):
        return torch.tensor([SIGMAS] * len(keys)) + torch.tensor([0.01 * (len(key) % 7) for key in keys])[:, None]

    def loss(self, replay, rows):
        seen = as_denoising(replay)
        self.seen.append(seen)
        assert rows.old_log_prob.isnan().all()
        return LossRows(row_mean((seen.velocity - (seen.noise - seen.clean)) ** 2), {})


def build(requires: Requires | None = None, **actor: object) -> SingleTrainEngine:
    return SingleTrainEngine(make_setup(make_config(**actor), requires=requires))


def gradients(engine: SingleTrainEngine, batch, algorithm) -> dict[str, torch.Tensor]:
    """Gradients of one train step, caught before the optimizer takes them."""
    found: dict[str, torch.Tensor] = {}

    def catch(norm: torch.Tensor) -> None:
        found.update({n: m.grad.clone() for n, m in engine._optimizer.masters.items() if m.grad is not None})

    engine._optimizer.step = catch
    engine.train_step(batch, algorithm)
    return found


def test_noise_belongs_to_the_key_and_the_row_and_the_mixture_is_linear():
    algorithm, trajectories = MatchVelocity(), make_trajectories(4)
    build(micro_batch_size=4).train_step(make_batch(trajectories, noise_keys=["a", "a", "b", "c"], seed=5), algorithm)
    assert len(algorithm.seen) == len(SIGMAS)
    for row, seen in enumerate(algorithm.seen):
        shape = seen.clean.shape[1:]
        assert torch.equal(seen.noise[2], normal(noise_seed(5, "b", 0, row, "train"), shape))
        assert torch.equal(seen.noise[0], seen.noise[1])
        assert not torch.equal(seen.noise[1], seen.noise[2])
        sigma = seen.sigma.reshape(-1, *[1] * len(shape))
        torch.testing.assert_close(seen.noisy, (1 - sigma) * seen.clean + sigma * seen.noise)
        assert torch.equal(seen.clean, torch.stack([t.final_latents for t in trajectories]))
        assert seen.streams == {"latents": (0, seen.clean[0].numel())}
    assert not torch.equal(algorithm.seen[0].noise, algorithm.seen[1].noise)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gradients_do_not_depend_on_the_micro_batch(size: int):
    batch = make_batch(make_trajectories(6), seed=1)
    whole = gradients(build(micro_batch_size=6), batch, MatchVelocity())
    split = gradients(build(micro_batch_size=size), batch, MatchVelocity())
    for name, expected in whole.items():
        torch.testing.assert_close(split[name], expected, rtol=1e-5, atol=1e-7)


def test_a_unit_is_never_torn_apart():
    algorithm = MatchVelocity()
    build(micro_batch_size=3).train_step(make_batch(make_trajectories(6), unit=2), algorithm)
    assert [len(seen.clean) for seen in algorithm.seen] == [2] * 6
    with pytest.raises(DataError, match="5 samples are no whole number of units of 2"):
        build().train_step(make_batch(make_trajectories(5), unit=2), MatchVelocity())


def test_samples_of_weight_zero_change_nothing():
    batch = make_batch(make_trajectories(4), seed=1)
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0])
    batch.trajectories[1].final_latents = batch.trajectories[1].final_latents * 100
    masked = gradients(build(), replace(batch, weights=weights), MatchVelocity())
    kept = [0, 2, 3]
    fewer = replace(batch, trajectories=[batch.trajectories[i] for i in kept], advantages=batch.advantages[kept])
    for name, expected in gradients(build(), fewer, MatchVelocity()).items():
        torch.testing.assert_close(masked[name], expected, rtol=1e-5, atol=1e-7)


def test_other_policies_predict_on_the_same_rows():
    requires = Requires(old_policy=True, reference_policy=True)
    engine, algorithm = build(requires), MatchVelocity(requires)
    batch = make_batch(make_trajectories(3), seed=2)
    engine.train_step(batch, algorithm)
    assert torch.equal(algorithm.seen[0].old_velocity, algorithm.seen[0].velocity)
    engine.update_old_policy(0.0)
    engine.train_step(batch, algorithm)
    after = algorithm.seen[-2]
    assert not torch.equal(after.reference_velocity, after.old_velocity)
    assert torch.equal(after.old_velocity, after.velocity)
    assert torch.equal(after.reference_velocity, algorithm.seen[0].velocity)
    assert not after.old_velocity.requires_grad
    assert after.velocity.requires_grad


def test_training_fits_the_samples_and_repeats_itself():
    batch = make_batch(make_trajectories(6), seed=3)
    first, second = build(lr=1e-2), build(lr=1e-2)
    losses = [first.train_step(batch, MatchVelocity()).metrics["actor/loss"] for _ in range(8)]
    assert losses[-1] < losses[0]
    for _ in range(8):
        second.train_step(batch, MatchVelocity())
    assert_equal(snapshot(dict(first.weights())), snapshot(dict(second.weights())))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"noise_keys": ["a"]}, DataError, "1 noise keys for 4 samples"),
        ({"trajectories": []}, DataError, "without trajectories"),
    ],
)
def test_batches_that_do_not_fit_are_refused(change, error, message):
    batch = replace(make_batch(make_trajectories(4)), **change)
    with pytest.raises(error, match=message):
        build().train_step(batch, MatchVelocity())


def test_levels_outside_of_the_schedule_and_mixed_shapes_are_refused():
    class Outside(MatchVelocity):
        def noise_levels(self, schedule, keys, seed):
            return torch.zeros(len(keys), 1)

    with pytest.raises(DataError, match=r"noise levels outside \(0, 1\]"):
        build().train_step(make_batch(make_trajectories(2)), Outside())
    trajectories = make_trajectories(2)
    trajectories[1].final_latents = trajectories[1].final_latents[:, :1]
    with pytest.raises(ConsistencyError, match="latent shape"):
        build().train_step(make_batch(trajectories), MatchVelocity())


def test_an_algorithm_that_is_given_the_other_kind_of_rows_says_so():
    algorithm = MatchVelocity()
    build().train_step(make_batch(make_trajectories(2)), algorithm)
    with pytest.raises(TypeError, match="stored transitions"):
        as_replay(algorithm.seen[0])
