"""Training in Megatron-Core's real layers on this CPU equals the single-process engine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from omni_backends.training.megatron.build import build_gpt, join_groups
from omni_backends.training.megatron.engine import MegatronTrainEngine
from omni_backends.training.megatron.layout import fuse, unfuse
from omni_backends.training.megatron.options import MegatronOptions
from omni_backends.training.megatron.policy import MegatronAdapter, MegatronPolicy, source_settings
from omni_backends.training.megatron.requirements import check_installed
from omni_backends.training.megatron.settings import settings
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.contracts.errors import CheckpointError, NonFiniteError
from omni_portable.contracts.training import TrainEngine
from omni_portable.models.qwen3.tiny import build_tiny_qwen3
from omni_portable.models.weights import named_tensors
from tests.backends.training.test_train_tokens import algorithm, batch_of, draw, setup_for
from tests.support.token_models import folder, load, some_rows
from tests.support.vendor_packages import require_supported

require_supported(lambda: check_installed(MegatronOptions()))

RULE = algorithm("grpo", kl_coef=0.1)


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    join_groups(1)
    yield
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def policy_of(adapter, path: Path) -> MegatronPolicy:
    told = settings(source_settings(path), MegatronOptions(), tensor_parallel=1, where=str(path))
    policy = MegatronPolicy(build_gpt(told, torch.float32), told).eval()
    policy.load(
        {n: t for n, t in named_tensors(adapter.transformer).items() if not (told.tied and n == "lm_head.weight")}
    )
    return policy


@pytest.mark.parametrize("tied", [False, True])
def test_real_modules_have_the_names_and_the_arithmetic(alone, tied, tmp_path):
    path = build_tiny_qwen3(tmp_path / "m", tied=True) if tied else folder("qwen3")
    ours = load("qwen3", ("transformer",), path=path)
    policy = policy_of(ours, path)
    trained = dict(ours.transformer.named_parameters())
    fused = fuse({name: tensor.detach() for name, tensor in trained.items()}, policy._settings.shape)
    own = dict(policy.named_parameters())
    assert own.keys() == fused.keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in fused.items())
    rows = some_rows(load("qwen3"), "qwen3")
    theirs = MegatronAdapter(policy, "qwen3", torch.device("cpu"))
    left, right = ours.score(rows, 0.7, entropy=True, logits=True), theirs.score(rows, 0.7, entropy=True, logits=True)
    for name in ("log_prob", "entropy", "logits"):
        torch.testing.assert_close(getattr(right, name), getattr(left, name), rtol=0, atol=2e-6)
    assert torch.equal(left.mask, right.mask)
    for scored in (left, right):
        (scored.log_prob * scored.mask).sum().backward()
    found = unfuse({name: p.grad for name, p in own.items()}, trained, policy._settings.shape)
    for name, parameter in trained.items():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=2e-6)


def test_recomputed_activations_change_nothing(alone):
    ours = load("qwen3", ("transformer",))
    rows = some_rows(load("qwen3"), "qwen3")
    gradients = []
    for recompute in (False, True):
        policy = policy_of(ours, folder("qwen3"))
        if recompute:
            policy.enable_gradient_checkpointing()
        MegatronAdapter(policy, "qwen3", torch.device("cpu")).score(rows, 1.0).log_prob.sum().backward()
        gradients.append({name: p.grad for name, p in policy.named_parameters()})
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


class Pair:
    """One engine of each kind on the same responses."""

    def __init__(self, world: int, tensor: int) -> None:
        self.setup = setup_for(
            "qwen3", lora_rank=0, requires=dataclasses.replace(RULE.requires, old_policy=True), max_num_seqs=2
        )
        self.setup.config.actor.ema_decay = 0.9
        self.batch = batch_of(draw(self.setup, "qwen3", 7))
        actor = dataclasses.replace(
            self.setup.config.actor, engine="megatron", world_size=world, tensor_parallel=tensor
        )
        config = dataclasses.replace(self.setup.config, actor=actor)
        self.engine = MegatronTrainEngine(dataclasses.replace(self.setup, config=config))
        self.exact = tensor == 1
        self.start = Path()


@pytest.fixture(scope="module", params=[(1, 1), (2, 1), (2, 2)], ids=["one", "data2", "tensor2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(*request.param)
    start = tmp_path_factory.mktemp("start")
    made.engine.save(start)
    made.start = start
    yield made
    made.engine.close()


def test_steps_are_those_of_one_process(pair):
    one = SingleTrainEngine(pair.setup)
    pair.engine.load(pair.start)
    assert isinstance(pair.engine, TrainEngine)
    assert pair.engine.weights_checksum() == one.weights_checksum()
    scored = pair.engine.log_probs(pair.batch)
    if pair.exact:
        assert torch.equal(scored.nan_to_num(), one.log_probs(pair.batch).nan_to_num())
    for step in range(3):
        theirs, ours = one.train_step(pair.batch, RULE), pair.engine.train_step(pair.batch, RULE)
        assert ours.metrics.keys() == theirs.metrics.keys()
        for name, value in theirs.metrics.items():
            assert math.isclose(ours.metrics[name], value, rel_tol=5e-6, abs_tol=5e-6), name
        torch.testing.assert_close(ours.log_probs, theirs.log_probs, rtol=0, atol=1e-5, equal_nan=True)
        for engine in (one, pair.engine):
            engine.update_old_policy(0.0 if step == 0 else 0.5)
    for policy in ("current", "old", "ema", "reference"):
        mine, yours = dict(pair.engine.weights(policy)), dict(one.weights(policy))
        assert list(mine) == list(yours)
        for name, tensor in yours.items():
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=5e-6)


def test_checkpoints_are_the_single_engines_files(pair, tmp_path):
    """Written here and read there, written there and read here: the same bytes, and the same next step."""
    pair.engine.load(pair.start)
    pair.engine.train_step(pair.batch, RULE)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    pair.engine.save(first)
    one = SingleTrainEngine(pair.setup)
    one.load(first)
    assert one.optimizer_steps == 1
    one.save(second)
    assert sorted(p.name for p in first.iterdir()) == sorted(p.name for p in second.iterdir())
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name
    expected = one.train_step(pair.batch, RULE)
    one.load(first)
    pair.engine.load(second)
    assert pair.engine.optimizer_steps == 1
    found = pair.engine.train_step(pair.batch, RULE)
    assert found.metrics["actor/loss"] == pytest.approx(expected.metrics["actor/loss"], abs=2e-6)
    assert found.metrics["actor/grad_norm"] == pytest.approx(expected.metrics["actor/grad_norm"], rel=1e-5)


def test_a_damaged_checkpoint_changes_nothing(pair, tmp_path):
    pair.engine.load(pair.start)
    before = pair.engine.weights_checksum()
    pair.engine.train_step(pair.batch, RULE)
    pair.engine.save(tmp_path)
    file = tmp_path / "weights.safetensors"
    whole = file.read_bytes()
    pair.engine.load(pair.start)
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="weights.safetensors"):
            pair.engine.load(tmp_path)
    (tmp_path / "ema.safetensors").unlink()
    file.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"ema\.safetensors"):
        pair.engine.load(tmp_path)
    assert pair.engine.weights_checksum() == before


def test_a_loss_that_is_not_finite_names_its_samples_and_changes_nothing(pair):
    pair.engine.load(pair.start)
    before = pair.engine.weights_checksum()
    bad = dataclasses.replace(pair.batch, advantages=pair.batch.advantages.clone())
    bad.advantages[3] = torch.nan
    with pytest.raises(NonFiniteError, match=r"\br3\b"):
        pair.engine.train_step(bad, RULE)
    assert pair.engine.weights_checksum() == before
    assert pair.engine.train_step(pair.batch, RULE).metrics["actor/grad_norm"] > 0


def test_sleep_and_export(pair, tmp_path):
    from transformers import Qwen3ForCausalLM

    pair.engine.load(pair.start)
    pair.engine.train_step(pair.batch, RULE)
    before = pair.engine.weights_checksum()
    pair.engine.sleep()
    pair.engine.wake()
    assert pair.engine.weights_checksum() == before
    pair.engine.export(tmp_path / "out")
    exported = Qwen3ForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    weights = dict(pair.engine.weights())
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in weights.items())
