"""Training rows that are steps of the policy's own sampling, and the fake score network beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omni_backends.training.generated import OwnSamples
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.algorithms.dmd2 import DMD2Options
from omni_portable.algorithms.dmd2.algorithm import DMD2
from omni_portable.contracts.algorithm import Denoising, LossRows, Rows, TrainBatch
from omni_portable.contracts.errors import CapabilityError, CheckpointError, DataError, NonFiniteError
from tests.backends.training.own_samples import rollouts
from tests.backends.training.toy import (
    SCHEDULE,
    assert_equal,
    make_batch,
    make_config,
    make_setup,
    make_trajectories,
    snapshot,
)
from tests.support.toy_adapter import ToyAdapter

pytestmark = pytest.mark.usefixtures("toy")


class Watched(DMD2):
    """Keeps what both losses saw."""

    def __init__(self, **options: object) -> None:
        super().__init__(DMD2Options(**options))
        self.seen: list[Denoising] = []
        self.fake_seen: list[Denoising] = []

    def loss(self, replay, rows: Rows) -> LossRows:
        self.seen.append(replay)
        return super().loss(replay, rows)

    def fake_loss(self, seen: Denoising, rows: Rows) -> LossRows:
        self.fake_seen.append(seen)
        return super().fake_loss(seen, rows)


def build(
    algorithm: DMD2, tmp_path: Path, lora: int = 0, dtype: torch.dtype = torch.float32, **actor: object
) -> SingleTrainEngine:
    config = make_config(**{"lr": 1e-3, **actor})
    config.model.lora.rank = lora
    config.model.teachers = {"t": type("Teacher", (), {"path": str(tmp_path), "lora": ""})()}
    engine = SingleTrainEngine(make_setup(config, requires=algorithm.requires, dtype=dtype))
    with torch.no_grad():  # a teacher that is not the student
        for parameter in engine._teachers.modules()[0].parameters():
            parameter.mul_(0.7)
    return engine


def batch_of(algorithm: DMD2, count: int, seed: int = 0, **fields: object) -> TrainBatch:
    return make_batch(rollouts(algorithm, count, seed), **{"seed": seed, **fields})


def everything(engine: SingleTrainEngine) -> dict[str, torch.Tensor]:
    found = {f"weights/{n}": t for n, t in engine._optimizer.masters.items()}
    for policy, copy in engine._policies.copies.items():
        found |= {f"{policy}/{n}": t for n, t in copy.tensors().items()}
    for name, optimizer in {"actor": engine._optimizer, **engine._trained_copies()}.items():
        found |= {f"{name}/{n}": t for n, t in optimizer.state_tensors().items()}
    return snapshot(found)


def test_rows_are_clean_samples_of_the_policys_own_steps(tmp_path: Path):
    algorithm = Watched(steps_per_sample=2, fake_updates_per_step=2, renoise=False)
    engine = build(algorithm, tmp_path, micro_batch_size=4)
    batch = batch_of(algorithm, 4, seed=3)
    with torch.no_grad():
        steps = algorithm.generated_steps(SCHEDULE, [t.request.request_id for t in batch.trajectories], 3)
        wanted = []
        for trajectory, step in zip(batch.trajectories, steps[:, 0].tolist(), strict=True):
            sigma, after = SCHEDULE.sigmas[step], SCHEDULE.sigmas[step + 1]
            moved = trajectory.next_latents[step] - trajectory.latents[step]  # Euler: dt v
            wanted.append(trajectory.latents[step] - sigma * moved / (after - sigma))
    engine.train_step(batch, algorithm)
    assert (len(algorithm.fake_seen), len(algorithm.seen)) == (4, 2)
    torch.testing.assert_close(algorithm.seen[0].clean, torch.stack(wanted), rtol=1e-4, atol=1e-5)
    assert algorithm.seen[0].clean.requires_grad
    for seen in (*algorithm.seen, *algorithm.fake_seen):
        sigma = seen.sigma.reshape(-1, 1, 1, 1)
        torch.testing.assert_close(seen.noisy, (1 - sigma) * seen.clean + sigma * seen.noise)
    for position in (0, 1):  # the same samples, other noise and levels
        fakes = [algorithm.fake_seen[position], algorithm.fake_seen[position + 2]]
        assert all(torch.equal(fake.clean, algorithm.seen[position].clean) for fake in fakes)
        assert not any(fake.clean.requires_grad for fake in fakes)
        assert not torch.equal(fakes[0].noise, fakes[1].noise)
        assert not torch.equal(fakes[0].sigma, algorithm.seen[position].sigma)


@pytest.mark.parametrize("lora", [0, 2])
def test_the_fake_network_is_trained_and_the_student_left_alone_meanwhile(tmp_path: Path, lora: int):
    algorithm = Watched(fake_updates_per_step=3, fake_lr=1e-2)
    engine = build(algorithm, tmp_path, lora, lr=0.0, weight_decay=0.0)
    start = snapshot(dict(engine.weights()))
    assert_equal(start, snapshot(dict(engine.weights("fake"))))
    metrics = engine.train_step(batch_of(algorithm, 4), algorithm).metrics
    assert_equal(snapshot(dict(engine.weights())), start)  # its learning rate is 0
    assert engine.weights_checksum("fake") != engine.weights_checksum()
    assert (engine._fake.optimizer.steps_done, engine.optimizer_steps) == (3, 1)
    assert metrics["actor/fake_lr"] == 1e-2
    losses = [metrics["actor/fake_loss"]]
    for _ in range(5):
        losses.append(engine.train_step(batch_of(algorithm, 4), algorithm).metrics["actor/fake_loss"])
    assert losses[-1] < losses[0]


def test_the_fake_networks_gradient_is_that_of_a_network_of_its_own(tmp_path: Path):
    algorithm = Watched(fake_updates_per_step=1)
    engine = build(algorithm, tmp_path, lr=1.0, beta1=0.0, grad_clip=0.0, weight_decay=0.0)
    found: dict[str, torch.Tensor] = {}

    def catch(norm: torch.Tensor) -> None:
        found.update({n: p.grad.clone() for n, p in engine._policies.fake.named().items() if p.grad is not None})

    with torch.no_grad():  # not where the student is
        for parameter in engine._policies.fake.parameters():
            parameter.mul_(1.3)
    engine._fake.optimizer.step = catch
    batch = batch_of(algorithm, 4)
    engine.train_step(batch, algorithm)
    other = ToyAdapter(make_setup().load)
    with torch.no_grad():
        for parameter in other.transformer.parameters():
            parameter.mul_(1.3)
    seen = algorithm.fake_seen[0]
    tokens = torch.stack([t.conditioning["tokens"] for t in batch.trajectories])
    velocity = other.transformer(seen.noisy, seen.sigma * 1000, tokens)
    (velocity - (seen.noise - seen.clean)).square().mean().backward()
    for name, parameter in other.transformer.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_the_step_does_not_depend_on_the_micro_batch(tmp_path: Path, size: int):
    algorithm = Watched(fake_updates_per_step=2)
    engines = [build(algorithm, tmp_path, micro_batch_size=each) for each in (6, size)]
    metrics = [engine.train_step(batch_of(algorithm, 6), algorithm).metrics for engine in engines]
    for name in ("actor/loss", "actor/fake_loss", "actor/grad_norm", "actor/fake_grad_norm"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=1e-4)


def test_a_guided_teacher_gets_the_negative_prompt(tmp_path: Path):
    plain, guided = Watched(), Watched(teacher_guidance_scale=3.0)
    batch = make_batch(rollouts(guided, 4, guided=True))
    for algorithm in (plain, guided):
        build(algorithm, tmp_path).train_step(batch, algorithm)
    one, other = plain.seen[0], guided.seen[0]
    assert torch.equal(one.fake_velocity, other.fake_velocity)
    assert not torch.equal(one.teacher_velocity, other.teacher_velocity)
    teacher = ToyAdapter(make_setup().load)
    tokens = torch.stack([t.conditioning["tokens"] for t in batch.trajectories])
    with torch.no_grad():
        for parameter in teacher.transformer.parameters():
            parameter.mul_(0.7)
        negative = {"tokens": torch.zeros_like(tokens)}
        expected = teacher.velocity(other.noisy, other.sigma * 1000, {"tokens": tokens}, 3.0, negative)
    torch.testing.assert_close(other.teacher_velocity, expected)
    with pytest.raises(CapabilityError, match="negative prompt"):
        build(guided, tmp_path).train_step(batch_of(guided, 4), guided)


def test_the_student_comes_closer_to_its_teacher(tmp_path: Path):
    algorithm = Watched(fake_updates_per_step=2)
    engine = build(algorithm, tmp_path, lr=3e-3, weight_decay=0.0)
    gaps = []
    for step in range(25):
        engine.train_step(batch_of(algorithm, 8, seed=step % 5), algorithm)
        parts = zip(engine._module.parameters(), engine._teachers.modules()[0].parameters(), strict=True)
        gaps.append(sum(float((a - b).square().sum().detach()) for a, b in parts) ** 0.5)
    assert gaps[-1] < gaps[0]


@pytest.mark.parametrize(("lora", "dtype"), [(0, torch.float32), (2, torch.float32), (0, torch.bfloat16)])
def test_resume_equals_the_uninterrupted_run(tmp_path: Path, lora: int, dtype: torch.dtype):
    algorithm = Watched(fake_updates_per_step=2)
    options = {"lora": lora, "dtype": dtype, "ema_decay": 0.9, "warmup_steps": 3}
    folder = tmp_path / "saved"
    folder.mkdir()
    through, resumed = (build(algorithm, tmp_path, **options) for _ in range(2))
    for seed in (0, 1):
        through.train_step(batch_of(algorithm, 4, seed=seed), algorithm)
    through.save(folder)
    saved = everything(through)
    assert {"fake.safetensors", "fake_optimizer.safetensors"} <= {path.name for path in folder.iterdir()}
    resumed.train_step(batch_of(algorithm, 4, seed=9), algorithm)  # whatever it did before must not matter
    resumed.load(folder)
    assert_equal(everything(resumed), saved)
    assert resumed._fake.optimizer.steps_done == 4
    results = [engine.train_step(batch_of(algorithm, 4, seed=2), algorithm).metrics for engine in (through, resumed)]
    assert results[0] == results[1]
    assert_equal(everything(resumed), everything(through))


@pytest.mark.parametrize("name", ["fake", "fake_optimizer"])
def test_a_damaged_file_of_the_fake_network_is_named_and_changes_nothing(tmp_path: Path, name: str):
    algorithm = Watched(fake_updates_per_step=1)
    engine, folder = build(algorithm, tmp_path), tmp_path / "saved"
    folder.mkdir()
    engine.train_step(batch_of(algorithm, 4), algorithm)
    engine.save(folder)
    engine.train_step(batch_of(algorithm, 4, seed=1), algorithm)
    before = everything(engine)
    path = folder / f"{name}.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=rf"{name}\.safetensors"):
        engine.load(folder)
    assert_equal(everything(engine), before)


def test_a_checkpoint_without_a_fake_network_is_refused(tmp_path: Path):
    folder = tmp_path / "saved"
    folder.mkdir()
    SingleTrainEngine(make_setup()).save(folder)
    with pytest.raises(CheckpointError, match="'fake' network"):
        build(Watched(), tmp_path).load(folder)


def test_sleep_and_wake_change_nothing(tmp_path: Path):
    algorithm = Watched(fake_updates_per_step=1)
    through, slept = (build(algorithm, tmp_path) for _ in range(2))
    for seed in (0, 1):
        for engine in (through, slept):
            engine.train_step(batch_of(algorithm, 4, seed=seed), algorithm)
        slept.sleep()
        assert all(parameter.numel() == 0 for parameter in slept._policies.fake.parameters())
        slept.wake()
    assert_equal(everything(slept), everything(through))


def test_a_fake_loss_that_is_not_finite_stops_the_step(tmp_path: Path):
    class Broken(Watched):
        def fake_loss(self, seen: Denoising, rows: Rows) -> LossRows:
            result = super().fake_loss(seen, rows)
            return LossRows(result.loss * torch.nan, {})

    algorithm = Broken()
    engine = build(algorithm, tmp_path)
    before = everything(engine)
    with pytest.raises(NonFiniteError, match="r0"):
        engine.train_step(batch_of(algorithm, 2), algorithm)
    assert_equal(everything(engine), before)


def test_samples_of_weight_zero_change_nothing(tmp_path: Path):
    algorithm = Watched(fake_updates_per_step=1)
    batch = batch_of(algorithm, 4, weights=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    batch.trajectories[1].latents = batch.trajectories[1].latents * 100
    kept = [0, 2, 3]
    fewer = make_batch([batch.trajectories[i] for i in kept], seed=0)
    results = [build(algorithm, tmp_path).train_step(each, algorithm).metrics for each in (batch, fewer)]
    for name in ("actor/loss", "actor/fake_loss", "actor/grad_norm", "actor/fake_grad_norm"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-4)


def test_rollouts_and_answers_that_do_not_fit_are_refused(tmp_path: Path):
    algorithm = Watched()
    engine = build(algorithm, tmp_path)
    with pytest.raises(CapabilityError, match="record_every_step"):
        engine.train_step(make_batch(make_trajectories(2)), algorithm)
    with pytest.raises(DataError, match="1 noise keys for 2 samples"):
        engine.train_step(batch_of(algorithm, 2, noise_keys=["a"]), algorithm)

    class Outside(Watched):
        def generated_steps(self, schedule, keys, seed):
            return super().generated_steps(schedule, keys, seed) + schedule.num_steps

    class Uneven(Watched):
        def noise_levels(self, schedule, keys, seed):
            return super().noise_levels(schedule, keys, seed).repeat(1, 2)

    for wrong, message in ((Outside(), "outside a schedule of 4"), (Uneven(), "noise levels")):
        with pytest.raises(DataError, match=message):
            build(wrong, tmp_path).train_step(batch_of(wrong, 2), wrong)
    algorithm.requires = replace(algorithm.requires, teacher=False)
    with pytest.raises(CapabilityError, match="fake_score"):
        SingleTrainEngine(make_setup()).train_step(batch_of(algorithm, 2), algorithm)


def test_the_policys_gradient_repeats_the_clean_samples_bit_for_bit(tmp_path: Path):
    algorithm = Watched(fake_updates_per_step=1)
    engine = build(algorithm, tmp_path, micro_batch_size=3)
    batch = batch_of(algorithm, 6)
    samples = OwnSamples(engine._adapter, batch, algorithm, 3, torch.device("cpu"))
    engine.train_step(batch, algorithm)
    for clean, seen in zip(samples._clean, algorithm.seen, strict=True):
        assert torch.equal(clean[0], seen.clean)
