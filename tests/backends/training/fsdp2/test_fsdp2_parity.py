"""Loss, gradients, metrics and weights of several processes are those of one."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_backends.training.fsdp2.checkpoint import read_whole
from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.contracts.algorithm import Requires, TrainBatch
from omni_portable.contracts.training import StepResult, TrainEngine
from tests.backends.training.fsdp2.blocks import blocks_batch, blocks_setup
from tests.backends.training.fsdp2.conftest import EVERYTHING, full_setup, lora_setup
from tests.backends.training.toy import ToyAlgorithm

ALGORITHM = {"pull": 0.3, "requires": Requires(reference_policy=True)}


def gradients(engine: Fsdp2TrainEngine | SingleTrainEngine, folder: Path) -> dict[str, torch.Tensor]:
    """Of the last step of an engine of `full_setup`."""
    if isinstance(engine, SingleTrainEngine):
        state = engine._optimizer.adamw.state
        return {name: state[m]["exp_avg"] for name, m in engine._optimizer.masters.items() if m in state}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    engine.save(folder)
    return read_whole(folder, "exp_avg")


def assert_same(ours: StepResult, theirs: StepResult, tolerance: float = 1e-6) -> None:
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name, value in theirs.metrics.items():
        assert math.isclose(ours.metrics[name], value, rel_tol=tolerance, abs_tol=tolerance), name
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, rtol=0, atol=tolerance, equal_nan=True)


def assert_weights_close(ours: TrainEngine, theirs: TrainEngine, policy: str, tolerance: float) -> None:
    mine, yours = dict(ours.weights(policy)), dict(theirs.weights(policy))
    assert list(mine) == list(yours)
    for name, tensor in yours.items():
        assert mine[name].dtype == tensor.dtype
        torch.testing.assert_close(mine[name].float(), tensor.float(), rtol=0, atol=tolerance)


def test_it_is_a_train_engine(full_pair):
    assert isinstance(full_pair, TrainEngine)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_loss_and_gradients_do_not_depend_on_ranks_or_micro_batches(full_pair, tmp_path_factory, data):
    """Any number of samples, weights, micro-batch size and guidance; rounds that do not go round; samples left out."""
    count = data.draw(st.integers(1, 9), label="samples")
    weights = data.draw(st.lists(st.sampled_from([0.0, 1.0, 1.0, 0.5, 2.0]), min_size=count, max_size=count))
    weights[data.draw(st.integers(0, count - 1))] = 1.0
    batch = blocks_batch(
        count, weights, guidance_scale=data.draw(st.sampled_from([1.0, 2.5])), seed=data.draw(st.integers(0, 99))
    )
    one = SingleTrainEngine(full_setup(1))
    one._micro_size = data.draw(st.integers(1, 9), label="micro-batch of one process")
    full_pair._micro_size = data.draw(st.integers(1, 9), label="micro-batch of two")
    theirs = one.train_step(batch, ToyAlgorithm(**ALGORITHM))
    ours = full_pair.train_step(batch, ToyAlgorithm(**ALGORITHM))
    assert_same(ours, theirs)
    folder = tmp_path_factory.mktemp("gradients")
    expected, found = gradients(one, folder / "one"), gradients(full_pair, folder / "two")
    assert "blocks.1.up.weight" in expected
    assert found.keys() == expected.keys()
    assert not any("unused" in name for name in found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6)


def test_log_probs_are_the_same_bits_in_the_same_micro_batches(full_pair):
    batch = blocks_batch(11)
    one = SingleTrainEngine(full_setup(1))
    full_pair._micro_size = 4
    for policy in ("current", "old", "ema", "reference"):
        assert torch.equal(full_pair.log_probs(batch, policy), one.log_probs(batch, policy)), policy
    full_pair._micro_size = 3
    assert torch.equal(full_pair.train_step(batch, ToyAlgorithm()).log_probs, full_pair.log_probs(batch))


def test_a_lora_and_its_policies_follow_one_process(lora_pair, tmp_path):
    one = SingleTrainEngine(lora_setup(1))
    batch = blocks_batch(10, [1, 1, 0, 1, 0.5, 1, 1, 1, 2, 1])
    for step in range(3):
        theirs = one.train_step(batch, ToyAlgorithm(**ALGORITHM))
        assert_same(lora_pair.train_step(batch, ToyAlgorithm(**ALGORITHM)), theirs, 5e-6)
        for engine in (one, lora_pair):
            engine.update_old_policy(0.0 if step == 0 else 0.7)
    assert lora_pair.optimizer_steps == 3
    for policy in ("current", "old", "ema"):
        assert_weights_close(lora_pair, one, policy, 1e-5)
    assert lora_pair.weights_checksum("old") != lora_pair.weights_checksum("ema")
    scores = {policy: lora_pair.log_probs(batch, policy) for policy in ("current", "old", "ema", "reference")}
    for policy, scored in scores.items():
        torch.testing.assert_close(scored, one.log_probs(batch, policy), rtol=0, atol=1e-5)
    assert len({scored.sum().item() for scored in scores.values()}) == 4
    assert torch.equal(lora_pair.log_probs(batch), scores["current"])


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (1, {"gradient_checkpointing": True, "offload": "cpu"}),
        (3, {"gradient_checkpointing": True, "sharding": "keep", "gradient_sync": "each", "micro_batch_size": 2}),
    ],
)
def test_options_do_not_change_the_numbers(start, world: int, options: dict):
    """Three processes leave some with empty shards and some rounds unfilled."""
    shared = {"lr": 1e-4, "ema_decay": 0.5}
    engine = start(blocks_setup(world=world, requires=EVERYTHING, **shared, **options))
    one = SingleTrainEngine(blocks_setup(world=1, requires=EVERYTHING, **shared))
    batch = blocks_batch(9)
    for _ in range(2):
        theirs = one.train_step(batch, ToyAlgorithm(**ALGORITHM))
        assert_same(engine.train_step(batch, ToyAlgorithm(**ALGORITHM)), theirs, 2e-6)
    assert_weights_close(engine, one, "current", 1e-6)


def test_narrow_weights_train_through_fp32_shards(start):
    """bf16: what is gathered and travels is the rounding of what is updated; the same arithmetic as in one process."""
    options = {"dtype": torch.bfloat16, "lr": 1e-5, "micro_batch_size": 2}
    engine, one = start(blocks_setup(**options)), SingleTrainEngine(blocks_setup(**(options | {"world": 1})))
    batch = blocks_batch(6)
    before = engine.weights_checksum()
    assert before == one.weights_checksum()
    for _ in range(4):
        theirs = one.train_step(batch, ToyAlgorithm())
        assert_same(engine.train_step(batch, ToyAlgorithm()), theirs, 1e-4)
    assert {tensor.dtype for _, tensor in engine.weights()} == {torch.bfloat16}
    assert_weights_close(engine, one, "current", 1e-2)


def test_layers_split_by_a_plan_give_the_same_gradients(start, tmp_path):
    setup = full_setup(2)
    setup.config.actor.tensor_parallel = 2
    engine, one = start(setup), SingleTrainEngine(full_setup(1))
    batch = TrainBatch(blocks_batch(5).trajectories, torch.tensor([1.0, -1.0, 0.5, 0.2, -0.7]))
    assert_same(engine.train_step(batch, ToyAlgorithm()), one.train_step(batch, ToyAlgorithm()))
    expected, found = gradients(one, tmp_path / "one"), gradients(engine, tmp_path / "two")
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6)
    assert engine.weights_checksum() == one.weights_checksum()
