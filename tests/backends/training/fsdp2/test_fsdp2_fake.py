"""A fake score network over ranks: the policy's own samples, both steps, and checkpoints, as in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from omni_backends.training.fsdp2.checkpoint import read_whole
from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.algorithms.dmd2 import DMD2Options
from omni_portable.algorithms.dmd2.algorithm import DMD2
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import CapabilityError, CheckpointError, NonFiniteError
from omni_portable.models.setup import EngineSetup
from tests.backends.training.fsdp2.blocks import TEACHER, BlocksAdapter, blocks_setup
from tests.backends.training.fsdp2.test_fsdp2_parity import assert_same, assert_weights_close
from tests.backends.training.own_samples import rollouts

ALGORITHM = DMD2(DMD2Options(steps_per_sample=2, fake_updates_per_step=2, fake_lr=2e-3))


def distilling(world: int, folder: Path, lora: int = 0, **actor: object) -> EngineSetup:
    (folder / TEACHER).mkdir(exist_ok=True)
    setup = blocks_setup(world=world, lora=lora, requires=ALGORITHM.requires, **{"lr": 1e-3, **actor})
    setup.config.model.teachers = {"t": SimpleNamespace(path=str(folder / TEACHER), lora="")}
    return setup


def drawn(count: int, seed: int = 0, **fields: object) -> TrainBatch:
    trajectories = rollouts(ALGORITHM, count, seed, adapter=BlocksAdapter(blocks_setup().load))
    return TrainBatch(trajectories, torch.zeros(count), seed=seed, **fields)


def fake_moments(engine: Fsdp2TrainEngine | SingleTrainEngine, folder: Path) -> dict[str, torch.Tensor]:
    if isinstance(engine, SingleTrainEngine):
        optimizer = engine._trained_copies()["fake"]
        return {name: optimizer.state_tensors()[f"exp_avg_sq/{name}"] for name in optimizer.updated_names()}
    folder.mkdir()
    engine.save(folder)
    return read_whole(folder, "fake_exp_avg_sq")


@pytest.mark.parametrize(
    ("world", "options"),
    [(1, {}), (2, {}), (2, {"lora": 2, "gradient_sync": "each"}), (2, {"micro_batch_size": 3, "sharding": "keep"})],
)
def test_both_networks_follow_one_process(start, tmp_path: Path, world: int, options: dict):
    """Seven samples, one of weight 0: rounds that do not go round."""
    engine = start(distilling(world, tmp_path, **options))
    one = SingleTrainEngine(distilling(1, tmp_path, **options))
    for step in range(3):
        batch = drawn(7, seed=step, weights=torch.tensor([1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 1.0]))
        theirs, ours = one.train_step(batch, ALGORITHM), engine.train_step(batch, ALGORITHM)
        assert {"actor/fake_loss", "actor/fake_grad_norm", "actor/fake_lr", "actor/dmd_gradient"} <= set(ours.metrics)
        assert_same(ours, theirs)
    for policy in ("current", "fake"):
        assert_weights_close(engine, one, policy, 1e-6)
    assert engine.weights_checksum("fake") != engine.weights_checksum()
    mine, yours = fake_moments(engine, tmp_path / "saved"), fake_moments(one, tmp_path)
    assert mine.keys() == yours.keys()
    for name, tensor in yours.items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-9)


def test_a_resumed_run_equals_the_uninterrupted_one_under_any_number_of_ranks(start, tmp_path: Path):
    pair, folder = start(distilling(2, tmp_path, ema_decay=0.9)), tmp_path / "saved"
    folder.mkdir()
    for seed in (0, 1):
        pair.train_step(drawn(8, seed), ALGORITHM)
    pair.save(folder)
    assert {"fake", "fake_exp_avg", "fake_exp_avg_sq", "fake_steps.safetensors"} <= {p.name for p in folder.iterdir()}
    kept = {policy: pair.weights_checksum(policy) for policy in ("current", "fake", "ema")}
    after = pair.train_step(drawn(8, 2), ALGORITHM).metrics
    moved = pair.weights_checksum("fake")
    assert moved != kept["fake"]
    pair.load(folder)
    assert {policy: pair.weights_checksum(policy) for policy in kept} == kept
    assert pair.train_step(drawn(8, 2), ALGORITHM).metrics == after
    assert pair.weights_checksum("fake") == moved
    alone = start(distilling(1, tmp_path, ema_decay=0.9))
    alone.load(folder)
    assert {policy: alone.weights_checksum(policy) for policy in kept} == kept
    again = alone.train_step(drawn(8, 2), ALGORITHM).metrics
    assert again == pytest.approx(after, rel=1e-6, abs=1e-6)
    _damaged_or_foreign(pair, folder)


def _damaged_or_foreign(engine: Fsdp2TrainEngine, folder: Path) -> None:
    """Files of the fake network are checked as all others, and nothing changes."""
    kept = engine.weights_checksum("fake")
    target = next((folder / "fake_exp_avg").iterdir())
    content = target.read_bytes()
    target.write_bytes(content[:-8])
    with pytest.raises(CheckpointError, match="fake_exp_avg/"):
        engine.load(folder)
    target.write_bytes(content)
    document = (folder / "engine.json").read_text()
    (folder / "engine.json").write_text(document.replace('"fake": {', '"other": {'))
    with pytest.raises(CheckpointError, match="no optimizer of the 'fake' network"):
        engine.load(folder)
    (folder / "engine.json").write_text(document)
    assert engine.weights_checksum("fake") == kept


def test_what_does_not_fit_or_is_not_finite_leaves_the_ranks_in_step(start, tmp_path: Path):
    engine = start(distilling(2, tmp_path))
    engine._micro_size = 2
    kept = (engine.weights_checksum(), engine.weights_checksum("fake"))
    short = drawn(4)
    short.trajectories[3].step_indices = short.trajectories[3].step_indices[:-1]
    with pytest.raises(CapabilityError, match="record_every_step"):
        engine.train_step(short, ALGORITHM)
    guided = DMD2(replace(ALGORITHM.options, teacher_guidance_scale=3.0))
    with pytest.raises(CapabilityError, match="negative prompt"):
        engine.train_step(drawn(4), guided)
    broken = drawn(4)
    broken.trajectories[2].latents[:, 0, 0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="r2"):
        engine.train_step(broken, ALGORITHM)
    assert (engine.weights_checksum(), engine.weights_checksum("fake")) == kept
    engine.sleep()
    engine.wake()
    assert engine.train_step(drawn(4), ALGORITHM).metrics["actor/fake_grad_norm"] > 0
